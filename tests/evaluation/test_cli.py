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
from graddiv.runs import Run
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
    Run(directory).log_file.write_text('{"event": "epoch", "epoch": 1}\n')
    size = Run(directory).log_file.stat().st_size
    store.write_tensors(Run(directory).last_checkpoint, state, {"progress": {"step": 1, "sums": {}, "log_size": size}})
    return directory


@pytest.fixture
def run(trained_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained_run, tmp_path / "run"))


def graddiv(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


def computed_again(*arguments: object, **options: object) -> NoReturn:
    pytest.fail("what is on disk was computed again")


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
    assert graddiv("records", run).stdout in first.stdout
    (line,) = csv.DictReader(io.StringIO(graddiv("records", run, "--csv").stdout))
    assert int(line["cost_choice"]) >= 4 * 2 * 20


def test_records_as_csv(run: Path) -> None:
    graddiv("attack", run, "--attacks", "fgsm", "--modes", "eot", "--n", 2, "--examples", 3)
    graddiv("measure", run, "--what", "concentration", "--n", 2, "--examples", 3)
    rows = list(csv.DictReader(io.StringIO(graddiv("records", run, "--csv").stdout)))
    assert [row["kind"] for row in rows] == ["attack", "concentration", "attack"]
    assert rows[0]["label"] == "clean"
    assert rows[2]["lam"] == "0.1"
    assert float(rows[1]["mean_rho"]) > 0
    assert "also there, for --csv and the report: concentration" in graddiv("records", run).output


def test_records_of_several_networks_make_a_table_of_each(tmp_path: Path) -> None:
    for name in "ab":
        for made in (attack_record("PGD", parameters=name * 8), total_record(parameters=name * 8)):
            store.write_arrays(
                tmp_path / f"{made.kind}-{name}.record", made.arrays, {"kind": made.kind, **made.description}
            )
    said = graddiv("records", tmp_path).output
    for name in "ab":
        assert said.count(f"t ({name * 8}): epsilon 0.1") == 2, "the table of attacks, and that of the Total"
    for a in (accuracy([attack_record("PGD")]), summary(total_record().verdicts)):
        assert said.count(f"{100 * a.mean:.2f} ± {100 * a.std:.2f}") == 2, "of two ensembles; networks are no repeats"
    assert "test set, 95 %" not in said, "draws are in it, too"
    assert "Interval: of other draws and other test examples" in said


def test_measure_and_transfer(run: Path) -> None:
    said = graddiv("measure", run, "--n", 2, "--examples", 1, "--what", "concentration,gradients").output
    assert "concentration of 2 gradients" in said
    said = graddiv("transfer", run, "--k", 2, "--m", 1, "--examples", 1).output
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
        "certificate.record",
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
    }


def test_sweep(run: Path) -> None:
    said = graddiv("sweep", run, "--over", "n", "--values", "1,2", "--m", 1, "--examples", 2).output
    assert "accuracy against n" in said
    assert said.count("(95 % interval: ") == 2
    by_lam = graddiv("sweep", run, "--over", "lam", "--n", 2, "--m", 1, "--examples", 2).output
    assert "accuracy against lam\n  0.1 " in by_lam
    assert f"records: {run / 'records'}" in by_lam.replace("\n", "")
    with pytest.raises(GradDivError, match="values are needed"):
        graddiv("sweep", run, "--over", "n")
    arguments = ("sweep", run, "--over", "n", "--values", "2", "--m", 2, "--examples", 3)
    with pytest.raises(GradDivError, match=r"was made with examples = 2, now it is 3: choose another .* --out"):
        graddiv(*arguments)
    graddiv(*arguments, "--out", run / "elsewhere")
    assert {path.name for path in (run / "elsewhere").glob("*.record")} == {
        "clean-r0.record",
        "pgd-eot2-m2-eps0.2-r0.record",
    }
    for wrong, message in (
        (("--repeats", 0), "repeats is 0"),
        (("--values", "2.5"), r"n is 2\.5, expected whole numbers"),
        (("--over", "m", "--attack", "fgsm"), "FGSM has one step"),
    ):
        with pytest.raises(GradDivError, match=message):
            graddiv(*arguments, *wrong)


def test_a_run_that_is_being_written_is_left_alone(run: Path) -> None:
    with store.locked(run / "records"), pytest.raises(GradDivError, match="is being written by"):
        graddiv("attack", run, "--attacks", "fgsm", "--examples", 2)


@pytest.mark.slow
def test_checklist(run: Path) -> None:
    said = graddiv("checklist", run, "--quick", "--examples", 10).output
    assert "verdict" in said
    written = json.loads((run / "records-quick" / "checklist.json").read_text())
    assert len(written["items"]) == 8


def test_the_strong_suite_chooses_by_itself_how_many_models_it_sees(run: Path) -> None:
    output = graddiv("attack", run, "--suite", "strong", "--passes", 8, "--examples", 3).output
    assert "SPGD" in output
    assert {record.kind for record in read_all(run / "records")} == {"attack", "gradient-noise"}
    graddiv("measure", run, "--what", "gradient-noise", "--n", 2, "--examples", 2)
    assert all(r.n * r.m <= 8 for r in read_all(run / "records") if isinstance(r, AttackRecord) and not r.is_clean)
