"""The commands, on a run that was never trained: fast, and as good as any to attack."""

import csv
import io
import json
import re
import shutil
from pathlib import Path
from typing import NoReturn

import pytest
from typer.testing import CliRunner, Result

from graddiv import store
from graddiv.attacks import Attack
from graddiv.cli import app
from graddiv.errors import GradDivError
from graddiv.experiment import parse
from graddiv.records import AttackRecord, accuracy, read_all, summary
from graddiv.runs import Log, Run
from tests.fake_records import attack_record, total_record

SETTINGS = {
    "method": "adv-bnn+graddiv",
    "data": {"name": "mnist-mini", "examples": 8},
    "network": {"architecture": "mnist_cnn", "width": 0.05},
    "training": {"epochs": 1},
    "adversary": {"epsilon": 0.2},
    "gaussian": {"prior_sigma": 0.05},
    "graddiv": {"regularizer": "kappa", "lam": 0.1},
}


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("run")
    experiment = parse(SETTINGS, "here")
    F = experiment.build(experiment.training_set())
    store.write_json(Run(directory).experiment_file, experiment.dump())
    Run(directory).checkpoints.mkdir()
    state = {f"network.{name}": tensor for name, tensor in F.state_dict().items()}
    log = Log(Run(directory).log_file)
    log(event="epoch", epoch=1)
    position = {"step": 1, "sums": {}, "log_size": log.size}
    log.close()
    store.write_tensors(Run(directory).last_checkpoint, state, {"progress": position})
    return directory


@pytest.fixture
def run(trained_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained_run, tmp_path / "run"))


def graddiv(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


def computed_again(*arguments: object, **options: object) -> NoReturn:
    pytest.fail("what is on disk was computed again")


@pytest.mark.slow
def test_attack_prints_the_table_and_writes_records_and_does_so_once(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("attack", run, "--attacks", "fgsm,pgd", "--m", 1, "--n", 2, "--examples", 2)
    first = graddiv(*arguments)
    assert "EOT-PGD" in first.output
    assert "Total, cross-fitted" in first.output
    assert "epsilon 0.2, 2 test" in first.output
    assert len(read_all(run / "records")) == 1 + 2 * 3
    monkeypatch.setattr(Attack, "__call__", computed_again)
    assert graddiv(*arguments).output == first.output
    monkeypatch.undo()
    assert "Total (6 of the paper's 16 rows)" in first.output
    with pytest.raises(GradDivError, match="was made with examples = 2, now it is 5"):
        graddiv(*arguments[:-2], "--examples", 5)
    with pytest.raises(GradDivError, match="there are 0 modes"):
        graddiv(*arguments, "--modes", "")


def test_attacks_of_another_library_stand_in_the_same_table(run: Path) -> None:
    pytest.importorskip("pyautoattack")
    arguments = ("attack", run, "--attacks", "fgsm", "--m", 2, "--n", 2, "--examples", 2)
    said = graddiv(*arguments, "--with", "pyautoattack").output
    assert "pyautoattack EOT-APGD-CE" in said
    assert "pyautoattack EOT-APGD-DLR" in said
    assert "Total (3 of the paper's 16 rows)" in said
    found = {record.label: record for record in read_all(run / "records")}
    assert len(found) == 1 + 3 + 2
    assert set(found["pyautoattack EOT-APGD-CE"].cost_backwards) == {2 * 3}
    with pytest.raises(GradDivError, match="unknown library 'autoattack', did you mean 'pyautoattack'"):
        graddiv(*arguments, "--with", "pyautoattack", "--with", "autoattack")


@pytest.mark.slow
def test_the_total_alone(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("attack", run, "--attacks", "fgsm,pgd", "--m", 1, "--n", 2, "--examples", 4, "--total-only")
    first = graddiv(*arguments)
    assert "fooled beyond doubt" in first.output
    assert re.search(r"Total [\d. ±]+ % by ensembles of 20", first.output)
    assert re.search(r"\d+ passes per image", first.output)
    (record,) = read_all(run / "records")
    assert record.kind == "total"
    monkeypatch.setattr(Attack, "__call__", computed_again)
    assert graddiv(*arguments).output == first.output
    assert graddiv("report", "--records", run).stdout in first.stdout
    (line,) = csv.DictReader(io.StringIO(graddiv("report", "--records", run, "--csv").stdout))
    assert int(line["cost_choice"]) >= 4 * 2 * 20


def test_records_as_csv(run: Path) -> None:
    graddiv("attack", run, "--attacks", "fgsm", "--modes", "eot", "--n", 2, "--examples", 3)
    graddiv("measure", run, "--what", "concentration", "--n", 2, "--examples", 3)
    rows = list(csv.DictReader(io.StringIO(graddiv("report", "--records", run, "--csv").stdout)))
    assert [row["kind"] for row in rows] == ["attack", "concentration", "attack"]
    assert rows[0]["label"] == "clean"
    assert rows[2]["lam"] == "0.1"
    assert float(rows[1]["mean_rho"]) > 0
    assert "also there, for --csv and the report: concentration" in graddiv("report", "--records", run).output


def test_records_of_several_networks_make_a_table_of_each(tmp_path: Path) -> None:
    for name in "ab":
        for made in (attack_record("PGD", parameters=name * 8), total_record(parameters=name * 8)):
            store.write_arrays(
                tmp_path / f"{made.kind}-{name}.record", made.arrays, {"kind": made.kind, **made.description}
            )
    said = graddiv("report", "--records", tmp_path).output
    for name in "ab":
        assert said.count(f"t ({name * 8}): epsilon 0.1") == 2, "the table of attacks, and that of the Total"
    for a in (accuracy([attack_record("PGD")]), summary(total_record().verdicts)):
        assert said.count(f"{100 * a.mean:.2f} ± {100 * a.std:.2f}") == 2, "of two ensembles; networks are no repeats"
    assert "test set, 95 %" not in said, "draws are in it, too"
    assert "Interval: of other draws and other test examples" in said


def test_measure_and_transfer(run: Path) -> None:
    said = graddiv("measure", run, "--n", 2, "--examples", 1, "--what", "concentration,gradients").output
    assert "concentration of 2 gradients" in said
    said = graddiv("measure", run, "--what", "transfer", "--k", 2, "--m", 1, "--examples", 1).output
    assert "accuracy on images made for another sample model" in said
    names = {path.name for path in (run / "records").glob("*.record")}
    assert names == {"concentration.record", "gradients.record", "transfer-eps0.2.record"}
    said = graddiv("measure", run, "--n", 3, "--examples", 2, "--what", "ensemble", "--out", run / "other").output
    assert re.search(r"accuracy of so many models: [\d.]+ % of 1, [\d.]+ % of 2, [\d.]+ % of 3", said)
    with pytest.raises(GradDivError, match="unknown measurement 'rotations', did you mean 'rotation'"):
        graddiv("measure", run, "--what", "rotations")


@pytest.mark.slow
def test_everything_is_measured_unless_told_otherwise(run: Path) -> None:
    graddiv("measure", run, "--n", 2, "--examples", 1, "--epsilon", "1/5")
    assert {path.name for path in (run / "records").glob("*.record")} == {
        "contrast.record",
        "gradient-noise-eps0.2.record",
        "nearby-eps0.2.record",
        "concentration.record",
        "gradients.record",
        "loss-increase-eps0.2.record",
        "rotation-linf-eps0.2.record",
        "rotation-l2-eps1.4.record",
        "boundary-eps0.2.record",
        "ensemble-size.record",
        "transfer-eps0.2.record",
        "path-eps0.2.record",
        "ensemble-size-attacked-eps0.2.record",
    }


@pytest.mark.slow
def test_several_values_are_compared(run: Path) -> None:
    eot_pgd = ("--attacks", "pgd", "--modes", "eot")
    said = graddiv("attack", run, *eot_pgd, "--n", "1,2", "--m", 1, "--examples", 2).output
    assert "EOT-PGD: accuracy against n" in said
    assert said.count("(95 % interval: ") == 2
    arguments = ("attack", run, *eot_pgd, "--n", 2, "--m", "1,2", "--restarts", "1,2", "--examples", 3)
    with pytest.raises(GradDivError, match=r"was made with examples = 2, now it is 3.*: choose another .* --out"):
        graddiv(*arguments)
    graddiv(*arguments, "--out", run / "elsewhere")
    assert {path.name for path in (run / "elsewhere").glob("*.record")} == {
        "clean-r0.record",
        *(f"pgd-eot2-m{m}{restarts}-eps0.2-r0.record" for m in (1, 2) for restarts in ("", "x2")),
    }
    for wrong, message in ((("--repeats", 0), "repeats is 0"), (("--n", "2.5"), "'2.5' is no whole number")):
        with pytest.raises(GradDivError, match=message):
            graddiv(*arguments, *wrong, "--out", run / "elsewhere")


def test_runs_are_compared_by_lambda(run: Path) -> None:
    other = Path(shutil.copytree(run, run.parent / "other"))
    settings = json.loads(Run(other).experiment_file.read_text())
    store.write_json(Run(other).experiment_file, {**settings, "graddiv": {**settings["graddiv"], "lam": 0.7}})
    words = ("--attacks", "pgd", "--modes", "eot", "--n", 2, "--m", 1, "--examples", 2)
    said = graddiv("attack", run, other, *words, "--out", run.parent / "out").output
    assert re.search(r"EOT-PGD: accuracy against lam\n  0\.1 .*\n  0\.7 ", said)
    assert (run.parent / "out" / "other" / "pgd-eot2-m1-eps0.2-r0.record").exists()


@pytest.mark.slow
def test_the_other_norm(run: Path) -> None:
    done = graddiv("attack", run, "--norm", "l2", "--modes", "eot", "--m", 1, "--n", 2, "--examples", 2)
    assert "epsilon 1.4 in L2, 2 test" in done.output, "the radius of the ball like that of training"
    assert "B&B is left out: it is not made for the norm L2" in done.stderr
    records = [r for r in read_all(run / "records") if isinstance(r, AttackRecord) and not r.is_clean]
    assert {r.attack["norm"] for r in records if r.attack} == {"L2"}
    for name in ("bb", "fgsm"):
        words = ("attack", run, "--attacks", name, "--examples", 2)
        with pytest.raises(GradDivError, match="expected Linf" if name == "bb" else "unknown norm 'l3'"):
            graddiv(*words, "--norm", "l2" if name == "bb" else "l3")


def test_names_are_checked_before_data_are_loaded(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graddiv.evaluation.target.load", lambda *_: pytest.fail("the data are loaded"))
    for words, message in ((("--attacks", "pdg"), "unknown attack 'pdg'"), (("--modes", "eto"), "unknown mode 'eto'")):
        with pytest.raises(GradDivError, match=message):
            graddiv("attack", run, *words)


@pytest.mark.slow
def test_measurements_in_the_other_norm(run: Path) -> None:
    for what in ("gradient-noise", "rotation", "concentration"):
        graddiv("measure", run, "--what", what, "--norm", "l2", "--n", 2, "--m", 1, "--examples", 1)
    names = {path.name for path in (run / "records").glob("*.record")}
    assert names == {"gradient-noise-l2-eps1.4.record", "rotation-l2-eps1.4.record", "concentration.record"}
    with pytest.raises(GradDivError, match="transfer is measured in linf only"):
        graddiv("measure", run, "--what", "transfer", "--norm", "l2")


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("transfer R --k 2 --m 1", "measure --what transfer R --k 2 --m 1"),
        ("checklist R --quick", "measure --what checklist R --quick"),
        ("records R --csv", "report --records R --csv"),
        ("rescore CARD --model M", "board --rescore CARD --model M"),
        ("recipes show NAME --scale quick", "recipes NAME --scale quick"),
        ("sweep R --over n --values 1,2", "attack R --attacks pgd --modes eot --m 20 --n 1,2"),
        ("sweep R --over=m --values=1,2 --n 5", "attack R --attacks pgd --modes eot --m 1,2 --n 5"),
        ("sweep R --over epsilon --values .1,.2", "attack R --epsilon .1,.2 --attacks pgd --modes eot --m 20"),
        ("sweep R S --over lam --attack fab --models 3", "attack R S --attacks fab --modes eot --m 20 --models 3"),
    ],
)
def test_commands_of_before_say_what_they_are_now(before: str, now: str) -> None:
    said = graddiv(*before.split(), "--help")
    assert "DeprecationWarning" in said.stderr
    assert set(now.split()) <= set(re.findall(r"'graddiv ([^']*)'", said.stderr)[-1].split())
    assert f"graddiv {now.split()[0]}" in said.stdout or now.split()[0] in said.stdout


def test_a_sweep_of_before_still_runs(run: Path) -> None:
    said = graddiv("sweep", run, "--over", "n", "--values", "1,2", "--m", 1, "--examples", 2)
    assert "accuracy against n" in said.output
    with pytest.raises(GradDivError, match="--n has no value"):
        graddiv("sweep", run, "--over", "n")


def test_a_run_that_is_being_written_is_left_alone(run: Path) -> None:
    with store.locked(run / "records"), pytest.raises(GradDivError, match="is being written by"):
        graddiv("attack", run, "--attacks", "fgsm", "--examples", 2)


@pytest.mark.slow
def test_checklist(run: Path) -> None:
    said = graddiv("measure", run, "--what", "checklist", "--quick", "--examples", 10).output
    assert "verdict" in said
    written = json.loads((run / "records-quick" / "checklist.json").read_text())
    assert len(written["items"]) == 8


def test_options_of_the_checklist_are_not_ignored(run: Path) -> None:
    with pytest.raises(GradDivError, match="--what checklist"):
        graddiv("measure", run, "--what", "concentration", "--quick")
    with pytest.raises(GradDivError, match="one radius"):
        graddiv("measure", run, "--what", "checklist", "--epsilon", "0.1,0.2")


@pytest.mark.parametrize("command", [("attack",), ("measure", "--what", "nearby")])
def test_a_radius_in_bytes_is_refused(run: Path, command: tuple[str, ...]) -> None:
    with pytest.raises(GradDivError, match=r"epsilon is 8.* 8/255"):
        graddiv(*command, run, "--epsilon", "8")


@pytest.mark.slow
def test_the_strong_suite_chooses_by_itself_how_many_models_it_sees(run: Path) -> None:
    output = graddiv("attack", run, "--suite", "strong", "--passes", 8, "--examples", 3).output
    assert "SPGD" in output
    assert {record.kind for record in read_all(run / "records")} == {"attack", "gradient-noise"}
    graddiv("measure", run, "--what", "gradient-noise", "--n", 2, "--examples", 2)
    assert all(r.n * r.m <= 8 for r in read_all(run / "records") if isinstance(r, AttackRecord) and not r.is_clean)
