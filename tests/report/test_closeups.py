import numpy as np
import pytest

from graddiv.report.closeups import plane, space


def unit(rng: np.random.Generator, n: int, p: int, towards: np.ndarray) -> np.ndarray:
    v = rng.standard_normal((n, p)) + towards
    return v / np.linalg.norm(v, axis=1, keepdims=True)


@pytest.fixture
def samples() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return unit(rng, 30, 12, 4 * np.eye(12)[0]), unit(rng, 40, 12, 2 * np.eye(12)[1])


def test_means_keep_their_length_on_the_plane_they_span(samples: tuple[np.ndarray, np.ndarray]) -> None:
    means = [v.mean(0) for v in samples]
    basis = plane(*means)
    np.testing.assert_allclose(basis @ basis.T, np.eye(2), atol=1e-12)
    for mean in means:
        assert np.linalg.norm(mean @ basis.T) == pytest.approx(np.linalg.norm(mean))
    assert (means[0] @ basis.T)[1] == pytest.approx(0)
    assert (means[0] @ basis.T)[0] > 0
    assert (np.linalg.norm(samples[0] @ basis.T, axis=1) <= 1).all()


def test_parallel_means_span_some_plane() -> None:
    mean = np.array([1.0, 2.0, 3.0])
    for basis in (plane(mean, 2 * mean), plane(mean, 0 * mean), plane(0 * mean, 0 * mean)):
        np.testing.assert_allclose(basis @ basis.T, np.eye(2), atol=1e-12)


def test_space_completes_the_means_by_what_spreads_most(samples: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = samples
    basis = space(a, b)
    np.testing.assert_allclose(basis @ basis.T, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(basis[:2], plane(a.mean(0), b.mean(0)), atol=1e-12)
    both = np.concatenate([a, b])
    rest = both - both @ basis[:2].T @ basis[:2]
    assert np.square(rest @ basis[2]).sum() == pytest.approx(np.linalg.svd(rest)[1][0] ** 2)


def test_one_sample_gives_its_mean_and_two_principal_directions(samples: tuple[np.ndarray, np.ndarray]) -> None:
    v = samples[0].astype(np.float16)  # as records keep them
    basis = space(v)
    mean = samples[0].mean(0)
    assert basis[0] @ mean == pytest.approx(np.linalg.norm(mean), abs=1e-3)
    assert basis.shape == (3, 12)
