"""Where settings come from: files, environment and flags are laid over one another, checked together, and each value
keeps its source.

Knows the shape of RunConfig and of an algorithm's settings class, and nothing of what the settings mean. `describe_run`
turns them into what a run writes about itself.
"""

from __future__ import annotations

import enum
import importlib.metadata
import json
import platform
import re
import subprocess
import sys
import tomllib
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from agentlightning.errors import ConfigError
from agentlightning.nouns import Json
from agentlightning.records.json_values import kind_of, out_of_numpy
from agentlightning.settings.fields import RunConfig, Settings
from agentlightning.settings.foreign import ForeignSettings
from agentlightning.spellings.absent import why, why_chosen
from agentlightning.spellings.nearest import did_you_mean, misspelt_absent, nearest
from agentlightning.text import at_home

ENVIRONMENT_PREFIX = "AGL_"
DEFAULT_ALGORITHM = "grpo"
Keys = tuple[str, ...]
Algorithms = Mapping[str, type[Settings]]
"""The settings class of every algorithm, by the name that ``[algorithm]`` gives it: `algorithms.ALGORITHMS`, which this
room is handed."""
S = TypeVar("S", bound=Settings)


@dataclass(frozen=True, slots=True)
class Resolved:
    """Settings that hold together. ``sources`` names, for each dotted key, where its value came from: ``default``,
    ``argument``, ``file runs.toml``, ``environment AGL_...`` or ``flag --x``. An algorithm's keys begin with
    ``algorithm.``."""

    config: RunConfig
    algorithm: Settings
    algorithm_name: str
    sources: Mapping[str, str] = field(default_factory=dict[str, str])

    def values(self) -> dict[str, Json]:
        """Every value as JSON, by dotted key, in the order of `sources`."""
        known = dict(_leaves(self.config.model_dump(mode="json"), RunConfig))
        known |= {
            ("algorithm", *keys): v for keys, v in _leaves(self.algorithm.model_dump(mode="json"), type(self.algorithm))
        }
        known["algorithm", "name"] = self.algorithm_name
        return {".".join(keys): value for keys, value in known.items()}


@dataclass(frozen=True, slots=True)
class _Given:
    """A value somebody gave. ``text`` values come from the environment or a flag and may mean more than one thing."""

    keys: Keys
    value: Json
    source: str
    text: bool = False


def resolve(
    algorithms: Algorithms,
    file: Path | None = None,
    flags: Mapping[str, Json] | None = None,
    env: Mapping[str, str] | None = None,
    defaults: RunConfig | Resolved | None = None,
    *,
    arguments: Mapping[str, Json] | None = None,
    algorithm: Settings | None = None,
    flag_names: Mapping[str, str] | None = None,
    foreign: ForeignSettings | None = None,
) -> Resolved:
    """Lays settings over one another, later over earlier: ``foreign``, ``defaults``, the TOML ``file``, ``AGL_...`` of
    ``env``, ``flags``, ``arguments``.

    ``defaults`` is what a program begins with: the values a RunConfig was really given (they count as ``argument``), or
    a Resolved with its sources, for which the environment was read already and is not read again. ``flags`` is keyed by
    dotted key (``learner.lr``, ``algorithm.group_size``); a text value is read like a TOML value, and as the text
    itself where it is none; ``flag_names`` gives the flag a key came by, ``--set`` otherwise. ``arguments`` are a
    program's keyword arguments, by section or dotted key, taken as they are; ``algorithm`` is one a program passed: its
    values are arguments too. The ``[algorithm]`` table goes to the settings class that ``algorithms`` has under the
    name in it.

    Raises ConfigError with one line for each problem: unknown keys with the nearest known ones, and values with what is
    allowed.
    """
    names = flag_names or {}
    given = [
        *(
            _Given(tuple(key.split(".")), value, source)
            for key, (value, source) in (foreign.settings.items() if foreign is not None else ())
        ),
        *(_resolved(defaults) if isinstance(defaults, Resolved) else _arguments(defaults, ())),
        *_from_file(file),
        *_from_environment({} if isinstance(defaults, Resolved) else env or {}),
        *(
            _Given(tuple(k.split(".")), v, f"flag {names.get(k, '--set')}", text=isinstance(v, str))
            for k, v in (flags or {}).items()
        ),
        *(each for key, value in (arguments or {}).items() for each in _passed(value, tuple(str(key).split(".")))),
        *_arguments(algorithm, ("algorithm",)),
    ]
    algorithm_name, algorithm_class = _algorithm_class(given, algorithm, algorithms)
    shapes: dict[str, type[Settings]] = {"": RunConfig, "algorithm": algorithm_class}
    problems: list[str] = []
    values: dict[Keys, _Given] = {}
    for item in given:
        if item.keys == ("algorithm", "name") and "name" not in algorithm_class.model_fields:
            continue
        for one in _spread(item, shapes, problems):
            _lay(values, one)
    config = _validate(RunConfig, (), {k: v for k, v in values.items() if k[0] != "algorithm"}, problems)
    made = _validate(
        algorithm_class, ("algorithm",), {k: v for k, v in values.items() if k[0] == "algorithm"}, problems
    )
    if problems or config is None or made is None:
        raise ConfigError("\n".join(problems))
    resolved = Resolved(config, made, algorithm_name)
    sources = {key: _source(values, tuple(key.split("."))) for key in resolved.values()}
    named = [item.source for item in given if item.keys == ("algorithm", "name")]
    sources["algorithm.name"] = "argument" if algorithm is not None else named[-1] if named else "default"
    return Resolved(config, made, algorithm_name, sources)


# --------------------------------------------------------------------------- reading the sources


def _arguments(settings: Settings | None, prefix: Keys) -> Iterator[_Given]:
    """What the settings were really given, as opposed to defaults."""
    if settings is None:
        return
    for name in sorted(settings.model_fields_set):
        value: Any = getattr(settings, name)
        if isinstance(value, Settings):
            yield from _arguments(value, (*prefix, name))
        else:
            yield _Given((*prefix, name), TypeAdapter(Any).dump_python(value, mode="json"), "argument")


def _passed(value: object, keys: Keys, source: str = "argument") -> Iterator[_Given]:
    """What a program passes for a setting or a section: also a settings object where a table may stand."""
    for path, leaf in leaves_of(value, keys):
        if isinstance(leaf, Settings):
            yield from _arguments(leaf, path)
        else:
            yield _Given(path, leaf, source)


def _resolved(resolved: Resolved) -> Iterator[_Given]:
    """What was given when these settings were resolved before, from where it came."""
    for key, value in resolved.values().items():
        if resolved.sources.get(key, "default") != "default":
            yield _Given(tuple(key.split(".")), value, resolved.sources[key])


def _from_file(file: Path | None) -> Iterator[_Given]:
    if file is None:
        return
    try:
        text = at_home(file).read_text(encoding="utf-8")
        table = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: the settings cannot be read: {getattr(error, 'strerror', None) or error}") from None
    except tomllib.TOMLDecodeError as error:
        other = (
            f" (settings are TOML, not {file.suffix[1:].upper()}: docs/config.md)"
            if file.suffix.lower() in (".yaml", ".yml", ".json")
            else ""
        )
        raise ConfigError(f"{file}: not valid TOML: {error}{other}") from None
    source = f"file {file.name}"
    for key, value in table.items():
        for keys, leaf in leaves_of(value, (key,)):
            yield _Given(keys, leaf, source + _line_of(text, keys))


def leaves_of(value: Json, keys: Keys = ()) -> Iterator[tuple[Keys, Json]]:
    """What is in a table and the tables within it, each value with its keys. An empty table is a value."""
    if isinstance(value, dict) and value:
        for key, item in cast("dict[object, Json]", value).items():
            yield from leaves_of(item, (*keys, str(key)))
    else:
        yield keys, value


def _line_of(text: str, keys: Keys) -> str:
    """`` line 12``, where a plain search finds the key; nothing for keys written in an unusual way."""
    table: Keys = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[([^\[\]]+)\]", line):
            table = tuple(part.strip().strip("\"'") for part in header[1].split("."))
        elif assigned := re.match(r"\s*([\w.\"'-]+)\s*=", line):
            path = (*table, *(part.strip().strip("\"'") for part in assigned[1].split(".")))
            if path == keys[: len(path)]:
                return f" line {number}"
    return ""


def _from_environment(env: Mapping[str, str]) -> Iterator[_Given]:
    for name in sorted(env):
        if name.startswith(ENVIRONMENT_PREFIX):
            keys = tuple(name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__"))
            yield _Given(keys, env[name], f"environment {name}", text=True)


# --------------------------------------------------------------------------- laying them over one another


def _algorithm_class(
    given: Iterable[_Given], algorithm: Settings | None, algorithms: Algorithms
) -> tuple[str, type[Settings]]:
    named = [item for item in given if item.keys == ("algorithm", "name")]
    if algorithm is not None:
        name = str(getattr(type(algorithm), "name", type(algorithm).__name__))
        if named and named[-1].value != name:
            raise ConfigError(
                f"algorithm.name = {named[-1].value!r} ({named[-1].source}): the program passes {name!r}; leave one of "
                "them out"
            )
        return name, type(algorithm)
    name = str(named[-1].value) if named else DEFAULT_ALGORITHM
    if name not in algorithms:
        place = f"algorithm.name ({named[-1].source})" if named else "algorithm.name"
        hint = why(name)
        said = f": {hint}" if hint else f" is not known; known: {', '.join(sorted(algorithms))}"
        raise ConfigError(f"{place}: algorithm {name!r}{said}")
    return name, algorithms[name]


def _spread(item: _Given, shapes: Mapping[str, type[Settings]], problems: list[str]) -> Iterator[_Given]:
    """The settings that a given value sets: itself, or what its table holds. An unknown key becomes a problem
    instead."""
    prefix: Keys = ("algorithm",) if item.keys[0] == "algorithm" else ()
    shape: Any = shapes[prefix[0] if prefix else ""]
    if item.keys == ("algorithm",):
        problems.append(
            f"algorithm ({item.source}): is a table; write its name as algorithm.name, e.g. name = "
            f'"{DEFAULT_ALGORITHM}" under [algorithm]'
        )
        return
    for depth in range(len(prefix), len(item.keys)):
        key = item.keys[depth]
        info = shape.model_fields.get(key)
        if info is None:
            problems.append(_unknown(item, item.keys[: depth + 1], shape, shapes))
            return
        section = section_of(info)
        if section is None:
            rest = item.keys[depth + 1 :]
            if rest and _origin(info.annotation) is not dict:
                problems.append(
                    f"{'.'.join(item.keys)} ({item.source}): {'.'.join(item.keys[: depth + 1])} is {allowed(info)}, "
                    "not a table"
                )
            elif item.text:
                yield _Given(item.keys, _read_text(cast("str", item.value), info, inside=bool(rest)), item.source)
            else:
                try:
                    yield _Given(item.keys, _plain(item.value), item.source)
                except TypeError as error:
                    problems.append(
                        f"{'.'.join(item.keys)} ({item.source}): is {error}; allowed is "
                        f"{allowed(info)}{_line(item, info, shapes.get('algorithm'))}"
                    )
            return
        shape = section
    if item.value != {}:
        problems.append(
            f"{'.'.join(item.keys)} ({item.source}): is a table of settings, not a value; its keys: "
            f"{', '.join(shape.model_fields)}"
        )


def _plain(value: object) -> Json:
    """A value of a program as settings have it. Raises TypeError, whose text is the kind of what cannot be one."""
    plain = out_of_numpy(value)
    if isinstance(plain, list | tuple):
        return [_plain(item) for item in cast("list[object]", plain)]
    if isinstance(plain, dict):
        return {str(key): _plain(item) for key, item in cast("dict[object, object]", plain).items()}
    if isinstance(plain, enum.Enum):
        return plain.value
    if isinstance(plain, Path):
        return str(plain)
    if plain is None or isinstance(plain, bool | int | float | str):
        return plain
    raise TypeError(kind_of(plain))


def _lay(values: dict[Keys, _Given], item: _Given) -> None:
    """A whole value replaces what was laid below its key; a key of a dict joins what the dict has."""
    for keys in [keys for keys in values if keys[: len(item.keys)] == item.keys]:
        del values[keys]
    for keys, value in leaves_of(item.value, item.keys):
        values[keys] = _Given(keys, value, item.source)


def _read_text(text: str, info: FieldInfo, *, inside: bool) -> Json:
    """What a text from the environment or a flag means for this setting: a TOML value if that fits, else the text
    itself."""
    annotation: Any = info.annotation
    if inside:
        annotation = get_args(annotation)[1]
    candidates: list[Json] = []
    if text.strip().lower() in ("none", "null") and type(None) in get_args(annotation):
        candidates.append(None)
    try:
        table = tomllib.loads(f"value = {text}")
        if list(table) == ["value"]:
            candidates.append(table["value"])
    except tomllib.TOMLDecodeError:
        pass  # not a TOML value: a plain text, as typed at a shell
    candidates.append(text)
    adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    for candidate in candidates:
        try:
            adapter.validate_json(_dump(candidate), strict=True)
            return candidate
        except ValidationError:
            continue
    if _origin(annotation) is bool and text.strip().lower() in ("1", "0", "yes", "no", "on", "off"):
        return text.strip().lower() in ("1", "yes", "on")
    return candidates[0]


# --------------------------------------------------------------------------- checking


def _validate(shape: type[S], prefix: Keys, values: Mapping[Keys, _Given], problems: list[str]) -> S | None:
    nested: dict[str, Json] = {}
    for keys, item in values.items():
        at = nested
        for key in keys[len(prefix) : -1]:
            at = at.setdefault(key, {})
        at[keys[-1]] = item.value
    try:
        return shape.model_validate_json(_dump(nested), strict=True)
    except ValidationError as error:
        for one in error.errors():
            problems.append(_bad_value(shape, prefix, values, one["loc"], one["type"], one["msg"]))
        return None


def check_given(shape: type[Settings], by_position: Sequence[object], given: Mapping[str, object]) -> None:
    """Holds what a program passes to a settings class to what a file may say. Raises ConfigError, a line for each
    problem."""
    call = f"{shape.__name__}(...)"
    if by_position:
        raise ConfigError(
            f"{call}: takes its settings by name, e.g. {shape.__name__}({next(iter(shape.model_fields))}=...)"
        )
    problems: list[str] = []
    values: dict[Keys, _Given] = {}
    for name, value in given.items():
        if name not in shape.model_fields:
            own = {
                key: as_argument(key) if shape is RunConfig else f"{key}=..."
                for key in (*_dotted(shape), *_section_names(shape))
            }
            elsewhere = {
                key: f"Trainer({as_argument(key)})" for key in _dotted(RunConfig) if key.rpartition(".")[2] not in own
            }
            near = did_you_mean(name, {**elsewhere, **own}) or f"; known: {', '.join(shape.model_fields)}"
            if shape is RunConfig and "; known" in near:
                near += f"; what an algorithm has goes to it, Trainer(algorithm={DEFAULT_ALGORITHM.upper()}(...))"
            hint = why(name) or f"no such setting{near}"
            problems.append(f"{name} ({call}): {hint}")
            continue
        for item in _passed(value, (name,), call):
            for one in _spread(item, {"": shape}, problems):
                _lay(values, one)
    _validate(shape, (), values, problems)
    if problems:
        raise ConfigError("\n".join(problems))


def _bad_value(
    shape: type[Settings],
    prefix: Keys,
    values: Mapping[Keys, _Given],
    loc: tuple[int | str, ...],
    kind: str,
    message: str,
) -> str:
    """``learner.lr = -1 (flag --set): allowed is a number > 0``."""
    keys = (*prefix, *(str(part) for part in loc if part != "[key]"))
    holder = next((item for k, item in values.items() if k == keys[: len(k)] or k[: len(keys)] == keys), None)
    info: FieldInfo | None = None
    at: Any = shape
    for key in keys[len(prefix) :]:
        if at is not None and not isinstance(at, type):  # the name of an entry in a table of sections
            at = at.section
            continue
        known = cast("dict[str, FieldInfo]", at.model_fields) if at is not None else {}
        field = known.get(key) if at is not None else info
        if field is None and kind == "extra_forbidden":
            near = nearest(key, {name: name for name in known})
            place = f" ({holder.source})" if holder is not None else ""
            hint = f"nearest: {near[0]}; " if near else ""
            return f"{'.'.join(keys)}{place}: no such setting; {hint}known: {', '.join(known)}"
        info = field
        at = section_of(info) or _sections(info) if info is not None else None
    place = f" ({holder.source})" if holder is not None else ""
    if kind in ("value_error", "assertion_error", "string_pattern_mismatch") or info is None or holder is None:
        return (
            f"{'.'.join(keys) or 'settings'}{place}: "
            f"{message.removeprefix('Value error, ').removeprefix('Assertion failed, ')}"
        )
    # a key of a dict: show it with its value
    absent = why(holder.value) if isinstance(holder.value, str) else None
    return (
        f"{'.'.join(holder.keys)} = {json.dumps(holder.value, default=str)}{place}: allowed is "
        f"{allowed(info)}{f'; {absent}' if absent else _line(holder, info, shape if prefix else None)}"
    )


def _line(item: _Given, info: FieldInfo, algorithm: type[Settings] | None = None) -> str:
    """``, e.g. learner={"lr": 2e-05}``: the setting as its source writes it, with a value that it may have. Nothing
    where no plain value stands for it."""
    default: Any = info.get_default(call_default_factory=True, validated_data={})
    value: Any = default if default is not None else {int: 10, float: 1.0}.get(_origin(info.annotation))
    if not isinstance(value, bool | int | float | str | tuple) or value == "":
        return ""
    key, written = ".".join(item.keys), json.dumps(value)
    kind, _, name = item.source.partition(" ")
    if kind == "environment":
        return f", e.g. {name}={written}"
    if kind == "flag":
        return f", e.g. --set {key}={written}" if name == "--set" else f", e.g. {name} {value!s}"
    if kind == "file":
        return f", e.g. {item.keys[-1]} = {written}"
    is_argument = kind == "argument" or "." in key
    return f", e.g. {as_argument(key, algorithm) if is_argument else f'{key}=...'}".replace(
        "...", repr(cast("object", value))
    )


def _unknown(item: _Given, keys: Keys, shape: type[Settings], shapes: Mapping[str, type[Settings]]) -> str:
    whole = ".".join(item.keys)
    # A section that is here has settings of its own: one of them that is misspelt says nothing of the section's name.
    own = len(item.keys) > 1 and item.keys[0] in {*RunConfig.model_fields, "algorithm"}
    if sentence := why_chosen(whole, item.value) or why(".".join(item.keys[1:]) if own else whole):
        return f"{whole} ({item.source}): {sentence}"
    everything = [
        f"{prefix}.{key}".lstrip(".") for prefix, cls in shapes.items() for key in (*_dotted(cls), *_section_names(cls))
    ]
    algorithm = shapes.get("algorithm")

    def write(key: str) -> str:
        kind = item.source.partition(" ")[0]
        if kind == "environment":
            return ENVIRONMENT_PREFIX + key.upper().replace(".", "__")
        return as_argument(key, algorithm) if kind == "argument" or item.source.endswith("(...)") else key

    # The name of a section is no place for a value.
    sections = () if isinstance(item.value, Mapping) else {*_section_names(RunConfig), "algorithm"}
    near = nearest(
        whole, {key: write(key) for key in (*everything, "algorithm", "algorithm.name") if key not in sections}
    )
    if not near and (sentence := misspelt_absent(whole)):
        return f"{whole} ({item.source}): {sentence}"
    here = ".".join(keys[:-1])
    known = sorted({*shape.model_fields} if here else {*shape.model_fields, "algorithm"})
    hint = f"nearest: {', '.join(near)}" if near else f"known {'in ' + here if here else 'here'}: {', '.join(known)}"
    return f"{whole} ({item.source}): no such setting; {hint}"


def as_argument(key: str, algorithm: type[Settings] | None = None) -> str:
    """How a program writes a setting, where ``Trainer`` takes it: ``learner={"lr": ...}``. ``algorithm`` is the class
    that an ``algorithm.`` key belongs to; the default one where it is not said."""
    section, _, name = key.rpartition(".")
    if not section:
        return (
            f"{key}=..."
            if key not in RunConfig.model_fields or section_of(RunConfig.model_fields[key]) is None
            else f"{key}={{...}}"
        )
    if section == "algorithm":
        class_name = algorithm.__name__ if algorithm is not None else DEFAULT_ALGORITHM.upper()
        return f"algorithm={class_name}({name}=...)" if name != "name" else f"algorithm={class_name}()"
    return {"model.path": "model=...", "runner.n_runners": "n_runners=...", "gateway.port": "port=..."}.get(
        key
    ) or f'{section}={{"{name}": ...}}'


def settings_keys(algorithms: Algorithms) -> list[str]:
    """The dotted key of every setting, those of the algorithms too."""
    keys = (f"algorithm.{key}" for algorithm in algorithms.values() for key in _dotted(algorithm))
    return [*_dotted(RunConfig), *dict.fromkeys(keys)]


def as_arguments(algorithms: Algorithms) -> dict[str, str]:
    """How a program writes each setting, by dotted key; one of several algorithms by the first that has it."""
    written = {key: as_argument(key) for key in _dotted(RunConfig)}
    for algorithm in algorithms.values():
        for key in _dotted(algorithm):
            written.setdefault(f"algorithm.{key}", as_argument(f"algorithm.{key}", algorithm))
    return written


# --------------------------------------------------------------------------- the shape of settings classes


def _origin(annotation: Any) -> Any:
    """The type itself, without its optional None and its parameters."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        kept = [arg for arg in get_args(annotation) if arg is not type(None)]
        return _origin(kept[0]) if len(kept) == 1 else origin
    return origin or annotation


def section_of(info: FieldInfo) -> type[Settings] | None:
    """The settings class of a field that is a section."""
    annotation: Any = _origin(info.annotation)
    return annotation if isinstance(annotation, type) and issubclass(annotation, Settings) else None


@dataclass(frozen=True, slots=True)
class _Sections:
    """A table whose entries are sections, each under a name of the user's."""

    section: type[Settings]


def _sections(info: FieldInfo) -> _Sections | None:
    annotation: Any = get_args(info.annotation)[1] if _origin(info.annotation) is dict else None
    return _Sections(annotation) if isinstance(annotation, type) and issubclass(annotation, Settings) else None


def _section_names(shape: type[Settings]) -> list[str]:
    return [name for name, info in shape.model_fields.items() if section_of(info) is not None]


def _dotted(shape: type[Settings]) -> Iterator[str]:
    for name, info in shape.model_fields.items():
        section = section_of(info)
        if section is None:
            yield name
        else:
            yield from (f"{name}.{key}" for key in _dotted(section))


def _leaves(values: Mapping[str, Json], shape: type[Settings], prefix: Keys = ()) -> Iterator[tuple[Keys, Json]]:
    for name, info in shape.model_fields.items():
        section = section_of(info)
        if section is None:
            yield (*prefix, name), values[name]
        else:
            yield from _leaves(values[name], section, (*prefix, name))


def _source(values: Mapping[Keys, _Given], keys: Keys) -> str:
    found = {item.source: None for k, item in values.items() if k[: len(keys)] == keys}
    return ", ".join(found) or "default"


_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    dict: "a table",
    Path: "a path",
    tuple: "a list",
}


def allowed(info: FieldInfo) -> str:
    """What a setting may be, in words: ``a number > 0``, ``one of auto, tree, flat``, ``a whole number >= 1, or
    none``."""
    return _allowed(info.annotation, info.metadata)


def _allowed(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    arguments = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return _allowed(arguments[0], [constraint for field in arguments[1:] for constraint in field.metadata])
    if type(None) in arguments:
        kept = [arg for arg in arguments if arg is not type(None)]
        return " or ".join(_allowed(arg, metadata) for arg in kept) + ", or none"
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(str(value) for value in arguments)
    base: Any = _origin(annotation)
    if isinstance(base, enum.EnumMeta):
        return "one of " + ", ".join(str(cast("enum.Enum", member).value) for member in base)
    words = _WORDS.get(base) or str(getattr(base, "__name__", base))
    if isinstance(base, type) and issubclass(base, Settings):
        return "{" + ", ".join(f"{name} = {allowed(info)}" for name, info in base.model_fields.items()) + "}"
    if base is dict:
        return f"a table: {_allowed(arguments[0])} = {_allowed(arguments[1])}"
    if base is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return f"a list of {_allowed(arguments[0])}"
    if base is tuple:
        return f"a list of {len(arguments)}: {', '.join(_allowed(arg) for arg in arguments)}"
    bounds = [
        f"{sign} {value:g}"
        for constraint in metadata
        for attribute, sign in (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<="))
        if isinstance(value := getattr(constraint, attribute, None), int | float)
    ]
    return f"{words} {' and '.join(bounds)}" if bounds else words


def _dump(value: Json) -> str:
    return json.dumps(value, default=str)


# --------------------------------------------------------------------------- what a run and a page say about settings


def describe_run(resolved: Resolved, agent_file: Path | None = None) -> dict[str, Json]:
    """What a run writes as ``config.json``: every value with its source, versions, platform, seed, and the revision of
    the user's code.

    ``git`` is that of the folder of ``agent_file`` (the working directory without one), None where it is no git working
    tree.
    """
    config = resolved.config.model_dump(mode="json")
    for external in config["resources"].values():
        del external["endpoint"]  # where somebody else's model is called is nobody's to read
    return {
        "config": config,
        "algorithm": {"name": resolved.algorithm_name, **resolved.algorithm.model_dump(mode="json")},
        "sources": dict(resolved.sources),
        "versions": {
            "python": platform.python_version(),
            **{name: _version(name) for name in ("agentlightning", "torch", "transformers", "peft", "numpy")},
        },
        "platform": platform.platform(),
        "machine": platform.machine(),
        "seed": resolved.config.seed,
        "command": sys.argv,
        "agent_file": str(agent_file) if agent_file is not None else None,
        "git": git_revision(agent_file.resolve().parent if agent_file is not None else Path.cwd(), agent_file),
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def git_revision(folder: Path, file: Path | None = None) -> dict[str, Json] | None:
    """The commit of a working tree and whether the code differs from it: a tracked file is changed, or ``file`` is not
    tracked.

    ``revision`` is None before the first commit. The result is None where there is no git or no working tree.
    """
    try:
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
        if changed is None:
            return None
        untracked = file is not None and _git(folder, "ls-files", "--error-unmatch", str(file.resolve())) is None
        return {"revision": _git(folder, "rev-parse", "--verify", "HEAD"), "dirty": bool(changed) or untracked}
    except (OSError, subprocess.TimeoutExpired):  # no git here, or a working tree too slow to ask
        return None


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False, stdin=subprocess.DEVNULL)
    return done.stdout.strip() if done.returncode == 0 else None
