"""Gradients of thousands of dimensions on a plane or in space, to look at: NumPy only."""

import numpy as np
from jaxtyping import Float, Float64


def plane(mean_a: Float[np.ndarray, " p"], mean_b: Float[np.ndarray, " p"]) -> Float64[np.ndarray, "2 p"]:
    """An orthonormal basis of the plane that two mean gradients span, the first axis along mean_a.

    Both means lie in it, so the lengths of their projections are their own; where they are parallel, the second axis
    is some direction orthogonal to them.
    """
    return _orthonormal([mean_a, mean_b, *np.eye(3, len(mean_a))], 2)


def space(*samples: Float[np.ndarray, "_ p"]) -> Float64[np.ndarray, "3 p"]:
    """An orthonormal basis of the space of the first figure: the means of one or two samples of gradients, completed
    by the directions, orthogonal to them, along which the gradients spread the most.
    """
    means = [v.mean(0, dtype=np.float64) for v in samples]
    flat = _orthonormal(means, len(means))
    around = np.concatenate([v.astype(np.float64) for v in samples])
    _, _, principal = np.linalg.svd(around - around @ flat.T @ flat, full_matrices=False)
    return _orthonormal([*flat, *principal, *np.eye(3, around.shape[1])], 3)


def project(v: Float[np.ndarray, "... p"], basis: Float[np.ndarray, "d p"]) -> Float64[np.ndarray, "... d"]:
    """The coordinates v.e_1 .. v.e_d of v in an orthonormal basis."""
    coordinates: np.ndarray = v.astype(np.float64) @ basis.T
    return coordinates


def _orthonormal(vectors: list[np.ndarray], wanted: int) -> Float64[np.ndarray, "d p"]:
    """Gram-Schmidt: the first `wanted` of the vectors that are no combination of those before them."""
    basis = np.zeros((0, len(vectors[0])))
    for vector in vectors:
        length = np.linalg.norm(vector)
        if len(basis) == wanted or length == 0:
            continue
        rest = vector / length
        for _ in range(2):  # once more removes what rounding left
            rest = rest - basis.T @ (basis @ rest)
        if np.linalg.norm(rest) > 1e-9:
            basis = np.vstack([basis, rest / np.linalg.norm(rest)])
    return basis
