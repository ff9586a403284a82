import csv
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from graddiv import store
from graddiv.attacks import PGD, StochasticPGD
from graddiv.errors import GradDivError
from graddiv.evaluation import Cell
from graddiv.records import ConcentrationRecord, GradientNoiseRecord, GradientsRecord
from graddiv.report import style
from graddiv.report.comparison import Comparison, ReportRun, titles
from graddiv.report.figures import gradients
from graddiv.report.output import RENDERERS, Figure, csv_text, image, save
from graddiv.report.style import Sheet
from tests.report import fake

FIGURES = {name: draw for name, draw in RENDERERS.items() if draw.__module__.startswith("graddiv.report.figures")}
VARIANTS = ("adv-bnn", *(f"adv-bnn+graddiv-{R}" for R in ("kappa", "mean", "dpp", "max", "smoothmax")))


SWEPT = {
    "accuracy-epsilon": "epsilon",
    "regularizers": "epsilon",
    "lambda-sensitivity": "epsilon",
    "n-sensitivity": "n",
    "m-sensitivity": "m",
    "passes-sensitivity": "passes",
    "contrast-accuracy": "epsilon",
    "epochs": "epsilon",
}
"""What the curves of accuracy go over: such a figure is made of no other attacks."""


@pytest.fixture(scope="module")
def comparisons(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Comparison]:
    """What each figure is drawn from."""
    root = tmp_path_factory.mktemp("runs")
    made = {
        "regularizers": fake.comparison(root / "variants", VARIANTS),
        "lambda-sensitivity": fake.comparison(root / "lams", lams=(0.1, 1.0)),
        "epochs": lengths(root),
    }
    main = fake.comparison(root / "main", ("adv-train", "adv-bnn", "adv-bnn+graddiv"))
    return {name: drawn_from(made.get(name, main), name) for name in FIGURES}


def lengths(root: Path) -> Comparison:
    """Two methods, each after a first stage of 2 and of 4 epochs, under names that say so."""
    runs = [(run, count) for count in (2, 4) for run in fake.comparison(root / "epochs").runs]
    changed = [replace(fake.retrained(run, epochs=count), title=f"{run.title}, {count} epochs") for run, count in runs]
    return fake.compared(*changed)


def drawn_from(comparison: Comparison, name: str) -> Comparison:
    """As a plan restricts it."""
    return fake.swept(comparison, SWEPT[name]) if name in SWEPT else comparison


@pytest.fixture(scope="module")
def drawings(comparisons: dict[str, Comparison]) -> dict[str, Figure]:
    return {name: draw(comparisons[name]) for name, draw in FIGURES.items()}


def table(drawing: Figure, **wanted: object) -> list[dict[str, Any]]:
    rows = [dict(zip(drawing.columns, row, strict=True)) for row in drawing.rows]
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def lines(axes: Axes) -> list[np.ndarray]:
    return [np.asarray(line.get_xydata(), dtype=float) for line in axes.get_lines()]


def test_every_figure_is_there() -> None:
    assert set(FIGURES) == {
        *("sphere", "rotation", "training-concentration", "training-concentration-more", "scatter", "loss-increase"),
        *("kappa", "rho-attacked", "rho-nearby", "accuracy-epsilon", "transfer", "cosines", "regularizers"),
        *("n-sensitivity", "m-sensitivity", "passes-sensitivity", "lambda-sensitivity", "boundary"),
        *("contrast", "path", "contrast-accuracy", "epochs", "ensemble-size"),
    }


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.slow
def test_it_renders_and_says_what_to_see(drawings: dict[str, Figure], name: str) -> None:
    drawing = drawings[name]
    assert drawing.name == name
    assert image(drawing, "svg").startswith(b"<?xml")
    assert "recipe scale demo, mnist-mini" in drawing.caption
    assert re.search(r"\d", drawing.caption)
    assert "nan" not in drawing.caption
    assert drawing.caption.endswith(".")


def plotted(drawing: Figure) -> list[tuple[list[np.ndarray], list[list[tuple[float, float]]]]]:
    """For figures made of curves: the lines of each panel, and the points that the CSV says they have."""

    def points(x: str, y: str, group: tuple[str, ...], **wanted: object) -> list[list[tuple[float, float]]]:
        groups: dict[Any, list[tuple[float, float]]] = {}
        for row in table(drawing, **wanted):
            groups.setdefault(tuple(row[key] for key in group), []).append((row[x], row[y]))
        return list(groups.values())

    panels = drawing.figure.axes
    by_run = ("method", "lam")
    match drawing.name:
        case "training-concentration" | "training-concentration-more":
            measures = list(dict.fromkeys(row["measure"] for row in table(drawing)))
            expected = [points("epoch", "value", by_run, measure=m) for m in measures]
        case "regularizers":
            measures = ["R_kappa", "R_mean", "R_dpp", "R_max", "R_smoothmax", "accuracy"]
            expected = [points("x", "value", by_run, measure=m) for m in measures]
        case "accuracy-epsilon":
            expected = [points("x", "accuracy", by_run, whose=whose) for whose in ("ours", "paper")]
        case "n-sensitivity" | "m-sensitivity" | "passes-sensitivity":
            expected = [points("x", "accuracy", (*by_run, "whose"))]
        case "lambda-sensitivity":
            expected = [points("lam", "value", ("epsilon",), quantity=q) for q in ("accuracy", "rho")]
        case "rotation":
            expected = [points("angle", y, ("method", "norm")) for y in ("relative", "accuracy")]
        case "contrast":
            expected = [points("x", "margin", ("method",), what=what) for what in ("contrast lost", "attack")]
        case "path":
            steps = {step: place for place, step in enumerate(dict.fromkeys(row["step"] for row in table(drawing)))}
            drawing = replace(drawing, rows=tuple((*row[:2], steps[row[2]], *row[3:]) for row in drawing.rows))
            expected = [points("step", y, ("method",)) for y in ("rho", "length", "margin")]
        case "contrast-accuracy":
            expected = [points("right", "accuracy", ("method",), epsilon=0.3)]
        case "ensemble-size":
            expected = [points("models", "accuracy", ("method",))]
        case "epochs":
            expected = [points("epochs", "accuracy", ("method",), epsilon=epsilon) for epsilon in (0.2, 0.3)]
        case "rho-nearby":
            expected = [points("distance", y, by_run) for y in ("rho", "length")]
        case _:
            expected = [points("x", "density", ("method",), what="density")]
    return list(zip(map(lines, panels), expected, strict=True))


CURVES = [
    *("training-concentration", "training-concentration-more", "regularizers", "accuracy-epsilon", "n-sensitivity"),
    *("m-sensitivity", "lambda-sensitivity", "rotation", "kappa", "rho-attacked", "rho-nearby", "loss-increase"),
    *("passes-sensitivity", "contrast", "path", "contrast-accuracy", "epochs", "ensemble-size"),
]


@pytest.mark.parametrize("name", CURVES)
def test_the_csv_holds_the_plotted_curves(drawings: dict[str, Figure], name: str) -> None:
    for drawn, expected in plotted(drawings[name]):
        assert expected
        for curve in expected:
            wanted = np.array(curve)
            assert any(line.shape == wanted.shape and np.array_equal(line, wanted) for line in drawn)


@pytest.mark.parametrize(("name", "value"), [("transfer", "accuracy"), ("cosines", "cosine")])
def test_the_csv_holds_the_matrices(drawings: dict[str, Figure], name: str, value: str) -> None:
    drawing = drawings[name]
    for axes, method in zip(drawing.figure.axes, ("adv-bnn", "adv-bnn+graddiv"), strict=False):
        shown = np.asarray(axes.images[0].get_array())
        assert np.array_equal(shown.ravel(), [row[value] for row in table(drawing, method=method)])
    limits = {axes.images[0].get_clim() for axes in drawing.figure.axes[:2]}
    assert len(limits) == 1, "one scale of colours"


def test_the_csv_holds_the_regions(drawings: dict[str, Figure]) -> None:
    drawing = drawings["boundary"]
    shown = np.asarray(drawing.figure.axes[5].images[0].get_array())
    assert np.array_equal(shown.T.ravel(), [r["class"] for r in table(drawing, method="adv-bnn", model="ensemble")])


def test_the_regions_of_a_network_stand_in_two_rows_of_five(drawings: dict[str, Figure]) -> None:
    """With the ensemble behind the first row, as in the paper."""
    rows: dict[int, list[str]] = {}
    for axes in drawings["boundary"].figure.axes:
        place = axes.get_subplotspec()
        if axes.get_visible() and place is not None:
            rows.setdefault(place.rowspan.start, []).append(axes.get_title())
    first, second = ([f"model {k}" for k in models] for models in (range(1, 6), range(6, 11)))
    assert list(rows.values()) == 2 * [[*first, "ensemble"], second]


def trainings(comparison: Comparison) -> Comparison:
    """Its random runs, each trained with two seeds."""
    runs = [run for run in comparison.runs if run.random]
    return comparison.of([fake.retrained(run, seed=seed) for run in runs for seed in (0, 1)])


@pytest.mark.parametrize("name", ["kappa", "rho-attacked", "loss-increase"])
def test_densities_count_examples_and_trainings_apart(comparisons: dict[str, Comparison], name: str) -> None:
    alone, twice = (FIGURES[name](of).caption for of in (comparisons[name], trainings(comparisons[name])))
    examples = fake.EXAMPLES - (name == "kappa")  # one has no gradient
    assert f"{examples} test examples, 2 trainings" in twice
    assert f"{examples} test examples" in alone
    assert "trainings" not in alone


@pytest.mark.parametrize("name", ["transfer", "training-concentration", "boundary", "rotation"])
@pytest.mark.slow
def test_trainings_of_one_method_are_told_apart_by_their_seeds(comparisons: dict[str, Comparison], name: str) -> None:
    caption = FIGURES[name](trainings(comparisons[name]).of(trainings(comparisons[name]).runs[:2])).caption
    assert "Adv-BNN, seed 0" in caption
    assert "Adv-BNN, seed 1" in caption


def test_titles_say_in_what_runs_differ(comparisons: dict[str, Comparison]) -> None:
    _, first, second = comparisons["lambda-sensitivity"].runs
    assert list(titles([first]).values()) == ["Adv-BNN + GradDiv"]
    assert list(titles([first, second]).values()) == ["Adv-BNN + GradDiv, λ = 0.1", "Adv-BNN + GradDiv, λ = 1"]
    again = fake.retrained(first, seed=7)
    assert list(titles([first, again]).values()) == ["Adv-BNN + GradDiv, seed 0", "Adv-BNN + GradDiv, seed 7"]
    three = list(titles([first, again, second]).values())
    assert three[1:] == ["Adv-BNN + GradDiv, λ = 0.1, seed 7", "Adv-BNN + GradDiv, λ = 1"]


def test_the_csv_holds_the_dots_and_the_means(drawings: dict[str, Figure], comparisons: dict[str, Comparison]) -> None:
    drawing = drawings["scatter"]
    for dots, method in zip(drawing.figure.axes[0].collections, ("adv-bnn", "adv-bnn+graddiv"), strict=True):
        rows = table(drawing, method=method, what="gradient")
        assert np.array_equal(np.asarray(dots.get_offsets()), [[r["x"], r["y"]] for r in rows])
        [run] = [run for run in comparisons["scatter"].runs if run.method == method]
        record = run.measured(GradientsRecord)
        assert record is not None
        v = record.gradients[0].astype(float)
        for name in ("scatter", "sphere"):
            (mean,) = table(drawings[name], method=method, what="mean")
            length = np.linalg.norm([mean[axis] for axis in "xyz" if axis in mean])
            assert length == pytest.approx(np.linalg.norm(v.mean(0))), "means lie in the plane, at their own length"


def test_the_csv_is_written_as_it_is(drawings: dict[str, Figure]) -> None:
    drawing = drawings["kappa"]
    read = list(csv.reader(io.StringIO(csv_text(drawing.columns, drawing.rows))))
    assert read[0] == list(drawing.columns)
    assert [float(row[2]) for row in read[1:]] == [row[2] for row in drawing.rows]


def measured(run: ReportRun) -> ConcentrationRecord:
    found = run.measured(ConcentrationRecord)
    assert found is not None
    return found


def test_captions_are_made_of_the_numbers(comparisons: dict[str, Comparison], drawings: dict[str, Figure]) -> None:
    records = [measured(run) for run in comparisons["kappa"].runs if run.random]
    medians = [np.median(record.kappa[record.usable].astype(float)) for record in records]
    assert f"median κ̂ falls from {medians[0]:.3g} to {medians[1]:.3g}" in drawings["kappa"].caption


def test_an_opposite_result_is_said_as_it_is(comparisons: dict[str, Comparison]) -> None:
    plain, graddiv = comparisons["cosines"].runs[1:]
    swapped = [replace(plain, measurements=graddiv.measurements), replace(graddiv, measurements=plain.measurements)]
    caption = FIGURES["cosines"](fake.compared(*swapped)).caption
    assert "mean cosine rises from" in caption


@pytest.mark.parametrize("name", FIGURES)
def test_absent_records_name_the_command_that_makes_them(tmp_path: Path, name: str) -> None:
    store.write_json(tmp_path / "experiment.json", fake.experiment("adv-bnn").dump())
    fake.write_log(tmp_path, [{"event": "start"}])
    with pytest.raises(GradDivError, match=rf"{name} .*'graddiv (measure|train|attack) .*' makes them$"):
        FIGURES[name](fake.compared(ReportRun(tmp_path, "Adv-BNN")))


def test_the_concentration_at_attacked_examples_is_that_of_the_second_place(
    comparisons: dict[str, Comparison], drawings: dict[str, Figure]
) -> None:
    records = [record for _, record in comparisons["rho-attacked"].with_measurement(GradientNoiseRecord)]
    medians = [np.median(record.rho[:, 1].astype(float)) for record in records]
    found = [row["x"] for row in table(drawings["rho-attacked"], what="median")]
    assert found == pytest.approx(medians, rel=1e-3)


@pytest.mark.parametrize("name", ["sphere", "scatter", "kappa", "transfer", "accuracy-epsilon", "boundary"])
def test_one_run_alone_is_enough(comparisons: dict[str, Comparison], name: str) -> None:
    alone = fake.compared(comparisons[name].runs[-1])
    assert "Adv-BNN + GradDiv" in FIGURES[name](alone).caption


def test_values_that_are_all_alike_have_a_density(comparisons: dict[str, Comparison]) -> None:
    run = comparisons["kappa"].runs[1]
    alike = replace(measured(run), kappa=np.full(fake.EXAMPLES, 7.0, np.float32))
    drawing = FIGURES["kappa"](fake.compared(replace(run, measurements=(alike,))))
    assert "Median κ̂: Adv-BNN 7." in drawing.caption


def test_two_measurements_of_a_kind_are_refused(comparisons: dict[str, Comparison]) -> None:
    run = comparisons["kappa"].runs[1]
    twice = replace(run, measurements=(measured(run), measured(run)))
    with pytest.raises(GradDivError, match="has 2 records of concentration here, expected at most one"):
        FIGURES["kappa"](fake.compared(twice))


def test_the_papers_curve_is_scaled_to_our_radius_of_training(drawings: dict[str, Figure]) -> None:
    drawing = drawings["accuracy-epsilon"]
    theirs = {row["x"]: row["accuracy"] for row in table(drawing, method="adv-bnn", whose="paper")}
    assert theirs[0.253333] == 3.26, "of its 0.38, for it trained at 0.3 and we at 0.2"
    assert 0.3 not in theirs
    assert "which is 0.3 there and 0.2 here" in drawing.caption


@pytest.mark.parametrize(
    ("figure", "epsilon", "said"),
    [("transfer", 0.266667, "24 (adv-bnn)"), ("loss-increase", 0.266667, "-75 (adv-bnn+graddiv)")],
)
def test_a_number_of_the_papers_text_stands_at_its_own_ratio_only(
    comparisons: dict[str, Comparison], figure: str, epsilon: float, said: str
) -> None:
    """Its 0.4 of 0.3 is 0.2667 of our 0.2; the fake records are of 0.3."""

    def caption(*radii: float) -> str:
        runs = [
            replace(run, measurements=tuple(replace(r, epsilon=at) if hasattr(r, "epsilon") else r for r in measured))
            for run, at in zip(comparisons[figure].runs[1:], radii, strict=True)
            if (measured := run.measurements)
        ]
        return FIGURES[figure](fake.compared(*runs)).caption

    assert said in caption(epsilon, epsilon)
    assert "which is 0.3 there and 0.2 here" in caption(epsilon, epsilon)
    assert "The paper" not in caption(0.3, 0.3)
    assert "The paper" not in caption(epsilon, 0.3), "it would stand beside another ratio, too"


def test_the_sensitivity_to_m_stands_beside_the_papers_at_its_own_ratio_only(tmp_path: Path) -> None:
    made = fake.run(tmp_path / "run", "adv-bnn+graddiv", 0.3, data="cifar10", attacks=(PGD(m=20),), epsilons=(0.2,))
    swept = drawn_from(fake.compared(made), "m-sensitivity")
    assert "The paper" not in FIGURES["m-sensitivity"](swept).caption
    (run,) = swept.runs
    at_8 = replace(run, attacks=tuple(replace(r, epsilon=8 / 255) for r in run.attacks))
    assert "44.62 (adv-bnn+graddiv)" in FIGURES["m-sensitivity"](fake.compared(at_8)).caption


def test_runs_trained_at_two_radii_each_stand_beside_their_own_ratio(comparisons: dict[str, Comparison]) -> None:
    run = comparisons["accuracy-epsilon"].runs[1]
    runs = [replace(fake.retrained(run, epsilon), title=f"Adv-BNN, epsilon = {epsilon}") for epsilon in (0.2, 0.3)]
    drawing = FIGURES["accuracy-epsilon"](fake.compared(*runs))
    theirs = {(row["x"], row["accuracy"]) for row in table(drawing, whose="paper")}
    assert {(0.253333, 3.26), (0.38, 3.26)} <= theirs
    assert "which is 0.3 there and 0.2 here (Adv-BNN, epsilon = 0.2)" in drawing.caption
    dotted = [line for line in lines(drawing.figure.axes[0]) if len(set(line[:, 0])) == 1 and len(line) == 2]
    assert sorted(line[0, 0] for line in dotted) == [0.2, 0.3]


@pytest.mark.slow
def test_a_curve_begins_with_the_mean_over_its_trainings(tmp_path: Path) -> None:
    trainings = [fake.run(tmp_path / f"training-{seed}", "adv-bnn") for seed in range(2)]
    clean = [run.clean.mean for run in trainings if run.clean is not None]
    assert clean[0] != clean[1]
    drawing = FIGURES["accuracy-epsilon"](drawn_from(fake.compared(*trainings), "accuracy-epsilon"))
    (first,) = table(drawing, whose="ours", x=0.0)
    assert first["accuracy"] == pytest.approx(100 * sum(clean) / 2)
    assert [row["accuracy"] for row in table(drawing, whose="ours, one training", x=0.0)] == pytest.approx(
        [100 * c for c in clean]
    )


def with_radii(run: ReportRun, *radii: float) -> ReportRun:
    return replace(run, attacks=tuple(r for r in run.attacks if r.is_clean or r.epsilon in radii))


def test_a_line_is_not_drawn_across_radii_that_only_others_have(comparisons: dict[str, Comparison]) -> None:
    _, plain, graddiv = comparisons["accuracy-epsilon"].runs
    drawing = FIGURES["accuracy-epsilon"](
        fake.compared(with_radii(plain, 0.1, 0.2, 0.3), with_radii(graddiv, 0.1, 0.3))
    )
    whole, broken = (
        [line.get_xdata() for line in drawing.figure.axes[0].get_lines() if same_colour(line, method)]
        for method in ("adv-bnn", "adv-bnn+graddiv")
    )
    assert [0.0, 0.1, 0.2, 0.3] in map(list, whole)
    assert list(map(list, broken)) == [[0.1, 0.3], [0.0, 0.1], [0.3]]
    assert len(drawing.figure.axes[0].collections) == 3, "no band across it"
    assert "Sparse dots: across radii that were not run." in drawing.caption


def same_colour(line: Line2D, method: str) -> bool:
    """Whether it is a line of ours of this method."""
    return line.get_color() == style.METHODS[method].colour and line.get_markerfacecolor() != "white"


def test_a_figure_begins_at_the_radius_of_training_where_none_was_run_below(comparisons: dict[str, Comparison]) -> None:
    _, plain, graddiv = comparisons["accuracy-epsilon"].runs
    compared = fake.compared(with_radii(plain, 0.2, 0.3), with_radii(graddiv, 0.2, 0.3))
    drawing = FIGURES["accuracy-epsilon"](compared)
    assert min(row["x"] for row in table(drawing)) == 0.2 == compared.training_epsilons[0]
    one_radius = FIGURES["accuracy-epsilon"](fake.compared(with_radii(plain, 0.3)))
    assert {row["x"] for row in table(one_radius, whose="ours")} == {0.0, 0.3}, "one point alone is no curve"


def test_the_papers_curves_and_the_stronger_attack_have_panels_of_their_own(comparisons: dict[str, Comparison]) -> None:
    runs = comparisons["accuracy-epsilon"].runs
    drawing = FIGURES["accuracy-epsilon"](fake.compared(*runs))
    ours, theirs = drawing.figure.axes
    assert (ours.get_title(), theirs.get_title()) == ("EOT-PGD", "EOT-PGD, in the paper")
    assert ours.get_xlim() == theirs.get_xlim()
    assert {line.get_markerfacecolor() for line in theirs.lines if len(line.get_xdata()) > 2} == {"white"}

    def strong(run: ReportRun) -> ReportRun:
        made = [replace(r, label=r.label.replace("EOT-PGD", "EOT-SPGD")) for r in run.attacks]
        made = [r for r in made if r.label == "EOT-SPGD"]
        return replace(run, attacks=(*run.attacks, *made))

    with_strong = FIGURES["accuracy-epsilon"](fake.compared(runs[0], *(strong(run) for run in runs[1:])))
    titles = [axes.get_title() for axes in with_strong.figure.axes]
    assert titles == ["EOT-PGD", "a stronger attack", "EOT-PGD, in the paper"]
    wanted = {row["method"] for row in table(with_strong, whose="ours, strong")}
    assert wanted == {"adv-bnn", "adv-bnn+graddiv"}


def test_a_shared_first_stage_shows_both(comparisons: dict[str, Comparison]) -> None:
    _, plain, _ = comparisons["training-concentration"].runs
    (axes,) = Sheet(1, 1, 3.0, 2.0).axes
    again = fake.retrained(plain, seed=1)
    points = gradients.plot_measure(axes, [plain, again], "R_mean")
    under, over, stripes = axes.get_lines()[:3]
    assert len(points) == 2 * len(under.get_xdata())
    assert (stripes.get_color(), over.get_color()) == tuple(look.colour for look in style.looks(["adv-bnn"] * 2))
    assert stripes.is_dashed()
    assert {under.get_markevery()[0], over.get_markevery()[0]} == {0, 1}, "no marker hides another's"


def test_trainings_have_the_same_marker_in_both_panels(comparisons: dict[str, Comparison]) -> None:
    run = comparisons["rho-nearby"].runs[-1]
    drawing = FIGURES["rho-nearby"](fake.compared(run, replace(run)))
    left, right = (
        [line.get_marker() for line in axes.get_lines() if len(line.get_xdata()) > 2] for axes in drawing.figure.axes
    )
    assert left == right == ["o", "s"]
    assert all("along a random direction" in axes.get_xlabel() for axes in drawing.figure.axes)


def test_the_papers_curve_is_drawn_once_for_all_variants_of_a_method(comparisons: dict[str, Comparison]) -> None:
    one = comparisons["accuracy-epsilon"]
    two = one.of([*one.runs, *(replace(run, title=f"{run.title}, longer") for run in one.runs)])
    alone, both = (table(FIGURES["accuracy-epsilon"](each), whose="paper") for each in (one, two))
    assert alone
    assert both == alone


def test_lambdas_are_compared_at_radii_that_all_have(comparisons: dict[str, Comparison]) -> None:
    first, *others = comparisons["lambda-sensitivity"].runs
    fewer = replace(first, attacks=tuple(r for r in first.attacks if r.is_clean or r.epsilon == 0.3))
    drawing = FIGURES["lambda-sensitivity"](fake.compared(fewer, *others))
    assert {row["epsilon"] for row in table(drawing, quantity="accuracy")} == {0.0, 0.3}


def test_passes_are_models_times_iterations(drawings: dict[str, Figure]) -> None:
    drawing = drawings["passes-sensitivity"]
    assert {row["x"] for row in table(drawing)} == {4 * 25, 4 * 100}
    assert drawing.title == "Accuracy under EOT-SPGD against its passes"
    assert "At passes = 400" in drawing.caption


@pytest.mark.slow
def test_passes_at_several_radii_have_a_panel_each(tmp_path: Path) -> None:
    runs = [fake.run(tmp_path / method, method, lam) for method, lam in (("adv-bnn", 0.0), ("adv-bnn+graddiv", 0.3))]
    rng = np.random.default_rng(0)
    for run in runs:
        for m in (25, 100):
            cell = Cell(StochasticPGD(m=m), "eot", 4, 0.3, 0)
            fake.write_attack(run.path, fake.target(run.path.name, run.experiment), cell, rng)
    of = fake.compared(*(fake.everything(run.path) for run in runs)).only(lambda run, r: r.label == "EOT-SPGD")
    drawing = FIGURES["passes-sensitivity"](of)
    assert [axes.get_title() for axes in drawing.figure.axes] == ["ε = 0.2", "ε = 0.3"]
    for axes, epsilon in zip(drawing.figure.axes, (0.2, 0.3), strict=True):
        shown = table(drawing, epsilon=epsilon, method="adv-bnn")
        assert np.array_equal(lines(axes)[0], [(row["x"], row["accuracy"]) for row in shown])
    assert re.search(r"ε = 0\.2: at passes = 400.* ε = 0\.3: at passes = 400", drawing.caption)


@pytest.mark.slow
def test_equal_records_give_equal_bytes(tmp_path: Path) -> None:
    for copy in ("a", "b"):
        paths = save(FIGURES["cosines"](fake.comparison(tmp_path / copy)), tmp_path / f"out-{copy}")
    assert {path.name for path in paths} == {f"cosines.{end}" for end in ("svg", "pdf", "png", "csv")}
    for path in paths:
        assert path.read_bytes() == (tmp_path / "out-a" / path.name).read_bytes()


@pytest.mark.parametrize("form", ["svg", "pdf", "png"])
def test_saving_changes_nothing(drawings: dict[str, Figure], form: str) -> None:
    def drawn() -> bytes:
        image.cache_clear()
        return image(drawings["transfer"], form)

    first = drawn()
    assert drawn() == first
    assert image.cache_info().misses == 1, "it was drawn again"


def test_a_figure_wanted_twice_is_drawn_once(drawings: dict[str, Figure]) -> None:
    assert image(drawings["transfer"], "svg") is image(drawings["transfer"], "svg")


def test_the_callers_settings_are_left_alone(comparisons: dict[str, Comparison]) -> None:
    before = dict(matplotlib.rcParams)
    image(FIGURES["n-sensitivity"](comparisons["n-sensitivity"]), "png")
    assert dict(matplotlib.rcParams) == before


def test_methods_are_told_apart_in_colour_and_in_grey() -> None:
    main = ["no-defense", "adv-train", "rse", "rse+graddiv", "pni", "mi", "adv-bnn", "adv-bnn+graddiv"]
    for methods in (main, list(VARIANTS), ["adv-bnn+graddiv"] * 4, ["mine", "yours"]):
        found = style.looks(methods)
        assert len(set(found)) == len(methods)
        assert len({look.marker for look in found}) == len(methods)
    assert style.looks(["adv-bnn"]) == style.looks(["rse", "adv-bnn"])[1:]


def test_a_second_run_of_a_method_has_a_colour_of_its_own() -> None:
    for methods in (
        ["adv-bnn+graddiv", "adv-bnn+graddiv-mean", "adv-bnn+graddiv"],
        ["rse", "rse", "adv-bnn+graddiv-mean"],
    ):
        assert len({look.colour for look in style.looks(methods)}) == 3


@pytest.mark.parametrize(("label", "columns"), [("Adv-BNN", 2), ("Adv-BNN, " + 9 * "a long story, ", 1)])
def test_long_labels_have_lines_of_their_own(label: str, columns: int) -> None:
    sheet = Sheet(1, 1, 3.0, 2.0)
    for look in style.looks(["rse", "pni", "mi", "adv-bnn"]):
        sheet.entry(look, label)
    (legend,) = sheet.done("").figure.legends
    assert legend._ncols == columns


def test_csv_text() -> None:
    assert csv_text(("a", "b"), [(1, "x,y"), (0.1, "")]) == 'a,b\n1,"x,y"\n0.1,\n'
