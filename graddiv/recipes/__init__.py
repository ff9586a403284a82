"""Recipes by name, of a data set, a method and a scale: `mnist/adv-bnn+graddiv` at `quick`.  See docs/equations.md."""

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from graddiv import store
from graddiv.data import SOURCES
from graddiv.data.own import is_own, own_source
from graddiv.diversity import REGULARIZERS
from graddiv.errors import GradDivError, unknown
from graddiv.experiment import Experiment, parse
from graddiv.networks import ARCHITECTURES, DEFENSES
from graddiv.references import name_of, source_digest
from graddiv.runs import Run, at_home, files_in, name_own, starting_point

SCALES = ("paper", "quick", "demo")
USUAL = 8 / 255  #: the radius of attacks where nothing speaks for another one
LAMBDAS = (0.05, 0.1, 0.3, 0.5, 0.7, 1.0, 3.0, 5.0, 10.0)  #: the paper cross-validates lambda over [0.05, 10]
CONTROL = "control"  #: adv-bnn+control: what adv-bnn+graddiv is, second stage included, without R
DEEPEST = 10  #: nested tables that an override may name

Tables = dict[str, Any]


@cache
def methods() -> dict[str, Tables]:
    """The defenses without GradDiv, by name."""
    return _shipped("methods")


def names() -> list[str]:
    """All shipped recipes; each that is listed with +graddiv also takes +graddiv-REGULARIZER."""
    both = {name: _random(m) and m.get("with_graddiv") is not False for name, m in methods().items()}
    variants = [v for name, m in both.items() for v in ([name, f"{name}+graddiv"] if m else [name])]
    return [f"{data}/{method}" for data in shipped_data() for method in variants]


def shipped_data() -> list[str]:
    """The data sets with a file of settings here; recipes for others are TOML files of the user."""
    return [name for name in SOURCES if (files("graddiv.recipes") / f"{name}.toml").is_file()]


def title(method: str) -> str:
    """The method's name in tables: Adv-BNN + GradDiv."""
    base, _, extra = method.partition("+")
    plain = str(methods()[base]["title"]) if base in methods() else base
    if extra == CONTROL:
        return f"{plain}, second stage without GradDiv"
    regularizer = extra.removeprefix("graddiv").removeprefix("-")
    return plain + (" + GradDiv" if extra else "") + (f"-{regularizer}" if regularizer else "")


def title_of(experiment: Experiment, usual: Experiment | None = None) -> str:
    """The method, and how its training differs from `usual`, by default the shipped recipe."""
    try:
        usual = usual or recipe(f"{experiment.data.name}/{experiment.method}", experiment.scale)
    except GradDivError:  # not one of ours
        return title(experiment.method)
    second_stage = bool(experiment.stages) or experiment.network.start is not None
    name = title(experiment.method) + (" from scratch" if usual.stages and not second_stage else "")
    theirs = _traits(usual, -1 if second_stage else 0)
    different = [text for key, text in _traits(experiment).items() if theirs.get(key, text) != text]
    return ", ".join([name, *different])


def _traits(experiment: Experiment, stage: int = -1) -> dict[str, str]:
    """The properties of a training that a title may name; the epochs are those of one stage."""
    adversary, R = experiment.adversary_of(experiment.schedule[-1]), experiment.regularization
    width, epochs = experiment.network.width, experiment.schedule[stage].epochs
    told = {"width": f"width 1/{1 / width:g}", "epochs": f"{epochs} epochs"}
    if adversary is not None:
        told |= {"n": f"trained against {adversary.n} draws", "m": f"trained against {adversary.m} steps"}
    if R is not None:
        told |= {"lam": f"λ = {R.lam:g}", "at": f"R at the {R.at} x", "gradients": f"R of {R.n} gradients"}
    if (first := first_epochs(experiment)) is not None:
        told["first"] = f"first stage of {first} epochs"
    return told


def first_epochs(experiment: Experiment) -> int | None:
    """The epochs of its first stage, or of the run that it started from, if that exists."""
    start = experiment.network.start
    if start is None:
        return experiment.schedule[0].epochs if experiment.stages else None
    before = Run(Path(start.path))
    return before.experiment.epochs if before.experiment_file.exists() else None


def recipe(name: str, scale: str = "paper", overrides: Sequence[str] = (), start: Path | None = None) -> Experiment:
    """The experiment of a shipped recipe, or of a TOML file if `name` is a path, with `a.b=value` overrides.

    `scale` is one of SCALES, by default the paper's own settings; a TOML file has its own.  `start`, a finished run or
    a safetensors file, takes the place of the first stage of a recipe of several; one of one stage trains it on.
    """
    try:
        source = name if name.endswith(".toml") else f"recipe {name}"
        file = Path(name)
        values = at_home(store.read_toml(file), file.parent) if file.suffix == ".toml" else _composed(name, scale)
    except store.MissingFileError:
        raise GradDivError(f"there is no recipe {name}: 'graddiv recipes NAME' prints one to start from") from None
    if start is not None:
        values = _from(values, start)
    mistakes = [mistake for override in overrides if (mistake := _set(values, override)) is not None]
    _look_into_files(values)
    try:
        experiment = parse(values, source)
    except GradDivError as error:
        mistakes.append(str(error))
    if mistakes:
        raise GradDivError("\n".join(mistakes))
    return experiment


def _look_into_files(values: Tables) -> None:
    """Add to each file of the user's own what a recipe says of it: its hash, and of data the shape and the classes."""
    data, network = values.get("data"), values.get("network")
    name = data.get("name") if isinstance(data, dict) and "file" not in data else None
    if isinstance(data, dict) and isinstance(name, str) and name not in SOURCES and is_own(name):
        data |= {"file": name, "name": name_of(name)}
    name_own(values)
    code = network.get("file") if isinstance(network, dict) else None
    if isinstance(network, dict) and isinstance(code, dict) and str(network.get("architecture")) in ARCHITECTURES:
        del network["file"]  # the architecture was changed
    files = files_in(values)
    new = {place: table for place, table in files.items() if "sha256" not in table}
    if start := new.get(("network", "from")):
        start |= starting_point(Path(start["path"]))
    if (code := new.get(("network", "file"))) and isinstance(network, dict):
        network["architecture"] = name_of(code["path"])
        code |= {"sha256": source_digest(code["path"])}
    own, test = files.get(("data", "file")), files.get(("data", "file_test"))
    if own and isinstance(data, dict) and any(section == "data" for section, _ in new):
        if data.get("name") in (None, *SOURCES):  # that of the recipe's own data
            name = name_of(own["path"])
            data["name"] = f"own-{name}" if name in SOURCES else name
        source = own_source(str(data["name"]), own["path"], test["path"] if test else "")
        hashes = [{"sha256": sha256} for sha256 in source.sha256s]
        own |= {**hashes[0], "shape": list(source.shape), "classes": len(source.classes), **own}
        if test:
            test |= {**hashes[1], **test}


def _from(values: Tables, start: Path) -> Tables:
    """The recipe without the stage that the network at `start` replaces."""
    values = {**values, "network": {**values.get("network", {}), "from": str(start)}}
    if not values.get("stages"):
        return values
    (second, *later), training = map(dict, values["stages"]), dict(values["training"])
    graddiv, n = second.pop("graddiv", None), second.pop("adversary_n", None)
    training.pop("decays", None)
    values |= {"training": training | second, "stages": later, "graddiv": graddiv}
    if n is not None:
        values["adversary"] = {**values.get("adversary", {}), "n": n}
    return {key: value for key, value in values.items() if value is not None}


def _composed(name: str, scale: str) -> Tables:
    data, _, method = name.partition("/")
    base, plus, extra = method.partition("+")
    if method and data not in shipped_data():
        raise unknown("data set", data, shipped_data())
    if base not in methods() or (plus and not re.fullmatch(rf"graddiv(-\w+)?|{CONTROL}", extra)):
        raise unknown("recipe", name, [n for n in names() if n.startswith(f"{data}/") or not method])
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    settings, wanted = _data_settings(data, scale), dict(methods()[base])
    del wanted["title"]
    with_graddiv = wanted.pop("with_graddiv", {})
    sections = {section: settings[section] for section in ("data", "network", "training")}
    sections |= {section: {**settings.get(section, {}), **own} for section, own in wanted.items()}
    if not plus:
        return {"method": method, "scale": scale, **sections}
    if not _random(wanted):
        raise GradDivError(f"{base} is deterministic, and GradDiv needs randomness: try adv-bnn+graddiv")
    if with_graddiv is False:
        raise GradDivError(
            f"{base} has no variant with GradDiv: 'graddiv recipes {data}/{base}' prints a recipe to which a "
            "section graddiv can be added"
        )
    last: Tables = {}
    if extra != CONTROL:
        last = {"graddiv": {**settings.get("graddiv", {}), **with_graddiv}}
        if regularizer := extra.removeprefix("graddiv").removeprefix("-"):
            _ = REGULARIZERS[regularizer]  # known, or an error that suggests the nearest
            last["graddiv"]["regularizer"] = regularizer
    elif "second_stage" not in settings:
        raise GradDivError(f"{name} trains a second stage without R, but at scale {scale} there is no second stage")
    if "second_stage" in settings:
        last = {"stages": [{**settings["second_stage"], **last}]}
    return {"method": method, "scale": scale, **sections, **last}


def _data_settings(data: str, scale: str) -> Tables:
    """The sections of a data set's file at a scale; `paper` is what stands there without a scale."""
    tables = _shipped(data)
    scaled = tables.pop("scales", {}).get(scale, {})
    base = tables.pop("base", None)
    settings = _data_settings(base, scale) if base else {}
    for layer in (tables, scaled):
        settings |= {section: {**settings.get(section, {}), **own} for section, own in layer.items()}
    return settings


def _random(method: Tables) -> bool:
    return any(section in DEFENSES and DEFENSES[section].random for section in method)


def _shipped(name: str) -> Tables:
    return store.parse_toml((files("graddiv.recipes") / f"{name}.toml").read_text(encoding="utf-8"), f"{name}.toml")


def _set(values: Tables, override: str) -> str | None:
    """Apply a.b=value, or return why not; the value is TOML, or else a plain word; "none" removes a key."""
    path, equals, text = override.partition("=")
    *tables, key = path.strip().split(".")
    if not equals or not key or len(tables) > DEEPEST:
        return f"--set {override!r:.200}: expected key=value, such as adversary.epsilon=8/255"
    section: Any = values
    if tables[:1] == ["graddiv"] and "graddiv" not in values:  # it belongs to a later stage
        section = next((stage for stage in reversed(values.get("stages", [])) if "graddiv" in stage), values)
    for table in tables:
        if isinstance(section, list):
            if not table.isdigit() or int(table) >= len(section):
                return f"--set {override!r}: {table!r} is none of the {len(section)} parts, which count from 0"
            section = section[int(table)]
        else:
            section = section.setdefault(table, {})
        if not isinstance(section, dict | list):
            return f"--set {override!r}: {table} is a value and has no keys of its own"
    if isinstance(section, list):
        return f"--set {override!r}: expected the number of a part and a key, such as {path.strip()}.0.epochs"
    text = text.strip()
    if text == "none":
        section.pop(key, None)
        return None
    try:
        section[key] = store.parse_toml(f"value = {text}", "--set")["value"]
    except GradDivError:
        section[key] = text
    return None


def has_section(experiment: Experiment, override: str) -> bool:
    """Whether the recipe has the section in which `a.b=value` sets a key; keys without a section fit every recipe."""
    *tables, _ = override.partition("=")[0].strip().split(".")
    if tables == ["graddiv"]:  # it may belong to a later stage
        return experiment.regularization is not None
    found: Any = experiment.dump()
    for table in tables:
        parts = {str(i): part for i, part in enumerate(found)} if isinstance(found, list) else found
        found = parts.get(table) if isinstance(parts, dict) else None
    return found is not None


def usual_radius(experiment: Experiment) -> tuple[float, str]:
    """The epsilon at which a network is attacked unless the user names one, and where it comes from.

    That of training; for networks trained on clean images, that of the recipe adv-train for their data.
    """
    if experiment.adversary is not None:
        return experiment.adversary.epsilon, "the radius of its training"
    if experiment.data.name not in shipped_data() or experiment.data.file is not None:
        return USUAL, "8/255, since it was trained on clean images, and no recipe for its data names another"
    scale = experiment.scale if experiment.scale in SCALES else "paper"
    beside = recipe(f"{experiment.data.name}/adv-train", scale).adversary
    assert beside is not None
    return beside.epsilon, f"that of {experiment.data.name}/adv-train, since it was trained on clean images"


def radius(experiment: Experiment) -> float:
    """The epsilon at which methods are compared: that of training, or that of other methods on the same data."""
    return usual_radius(experiment)[0]
