"""Reads damaged files, and tells what came of it."""

import random
import traceback
from pathlib import Path
from typing import Any, NamedTuple

from graddiv.errors import GradDivError
from graddiv.recipes import recipe
from tests.fuzz.damage import DAMAGE, Mutation, change_a_value_and_the_checksum
from tests.fuzz.subjects import ANYTHING, PREFIX, SUBJECTS, WHOLE


class Outcome(NamedTuple):
    kind: str
    """refused, harmless (read as it was), accepted; failures: fooled, crashed."""
    what: str = ""

    @property
    def failed(self) -> bool:
        return self.kind in ("fooled", "crashed")


class Fuzzer:
    """Damages the good file of one reader again and again."""

    def __init__(self, name: str, directory: Path, seed: int = 0) -> None:
        self.subject, self.chance = SUBJECTS[name], random.Random(f"{name} {seed}")
        self.path = directory / ("subject.toml" if name.endswith(".toml") else "subject")
        self.subject.write(self.path)
        self.content = self.path.read_bytes()
        self.value = self.subject.read(self.path)

    def once(self, mutation: Mutation | None = None) -> Outcome:
        """Damage the file in one way, by chance if none is given, and read it."""
        by_hand = mutation is None and self.subject.accepts == WHOLE and self.chance.random() < 0.2
        mutation = mutation or (change_a_value_and_the_checksum if by_hand else self.chance.choice(DAMAGE))
        content = mutation(self.chance, self.content)
        self.path.write_bytes(content)
        try:
            found = self.subject.read(self.path)
        except GradDivError as error:
            return Outcome("refused", str(error))
        except Exception:
            return Outcome("crashed", f"{mutation.__name__}\n{traceback.format_exc()}")
        if content == self.content or repr(found) == repr(self.value):
            return Outcome("harmless")
        if self.subject.accepts == ANYTHING or by_hand or self._is_beginning(found):
            return Outcome("accepted")
        return Outcome("fooled", f"{mutation.__name__}: accepted with another content")

    def _is_beginning(self, found: Any) -> bool:
        """Whether only the end of a log is missing, as after a crash; a checkpoint knows how long the log was."""
        return self.subject.accepts == PREFIX and found[0] == self.value[0][: len(found[0])]


WORDS = (
    *("seed", "data", "examples", "network.width", "training.epochs", "training.batch", "training.lr", "method"),
    *("training.decays", "adversary.epsilon", "adversary.m", "graddiv.n", "graddiv.lam", "stages", "stages.0.epochs"),
    *("gaussian.prior_sigma", "gaussian", "network.from", "x." * 900 + "y", "", "...", "a.b.c"),
)
VALUES = (
    *("1", "-1", "0", "true", "false", "none", "1e308", "1e9", "9" * 5000, "[" * 900, "[]", "[[1]]", "{a = 1}", '""'),
    *("nan", "inf", "8/255", "1/0", "é", "\x00", "'" * 3, "1979-05-27", "10000000000", "0.5", "x" * 10_000),
)


def odd_override(chance: random.Random) -> Outcome:
    """A setting on the command line that nobody would write."""
    override = f"{chance.choice(WORDS)}={chance.choice(VALUES)}"
    try:
        experiment = recipe("mnist/adv-bnn+graddiv", chance.choice(["paper", "quick"]), [override])
        _ = experiment.cost, experiment.run_name, experiment.to_toml()
    except GradDivError as error:
        return Outcome("refused", str(error))
    except Exception:
        return Outcome("crashed", f"--set {override[:80]}\n{traceback.format_exc()}")
    return Outcome("accepted")
