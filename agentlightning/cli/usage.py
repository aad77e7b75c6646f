"""What ``agl`` says of a command line that it cannot take: one line with what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, cast

import typer

from agentlightning.algorithms import ALGORITHMS
from agentlightning.errors import ConfigError
from agentlightning.settings.sources import settings_keys
from agentlightning.spellings.absent import why, why_chosen
from agentlightning.spellings.nearest import misspelt_absent, nearest

UsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])
"""Of what reads the command line: click, or typer's own copy of it, by version."""

_EXAMPLES = {
    "agl train": "agl train my_agent.py:agent --model MODEL_DIR --tasks train.jsonl",
    "agl dev": "agl dev my_agent.py:agent --model MODEL_DIR --tasks train.jsonl",
    "agl eval": "agl eval my_agent.py:agent --model MODEL_DIR --tasks val.jsonl",
    "agl show": "agl show latest",
    "agl chat": "agl chat --model MODEL_DIR",
}
"""The least that a command takes."""

_LINES = {
    "resume": "a run goes on with the command that began it, and --resume behind it; `agl show RUN` has the whole line",
    "continue": "a run goes on with the command that began it, and --resume behind it; `agl show RUN` has the whole "
    "line",
    "version": "agl --version",
    "help": "agl --help, or agl COMMAND --help",
    "store": "each output folder has its record, which `agl runs` and `agl show RUN` read; no server is started",
    "doctor": "agl dev my_agent.py:agent --model MODEL_DIR --tasks train.jsonl",
}
"""What is looked for as a command and has no command, with what to write."""

_DATA = re.compile(r"\.(jsonl|json|csv|tsv|parquet)\b")


def usage_line(error: Any) -> str:
    """A usage error as one line."""
    option: str | None = getattr(error, "option_name", None)
    if error.ctx is None:
        return error.format_message()
    if option is not None and type(error).__name__ == "NoSuchOption":
        asked: dict[str, Any] = error.ctx.obj or {}
        value = _given(option, asked.get("arguments", ()))
        return _no_option(option, error.ctx.command_path, error.ctx.command, value)
    kind, path = type(error).__name__, error.ctx.command_path
    said = " ".join(error.format_message().split()).rstrip(".")
    if kind == "MissingParameter":
        return f"{said} ({path} --help), e.g. {_EXAMPLES.get(path, path)}"
    if kind == "BadParameter" and error.param is not None and (takes := _takes(said)) is not None:
        option, got = error.param.opts[0], getattr(error.__cause__, "errors", list[Any])()
        given = f" {got[0]['input']!s:.60}" if got else ""
        return f"{option}{given}: expected {takes[0]}, e.g. {option} {takes[1]} ({path} --help)"
    if "extra argument" in said and _DATA.search(said):
        return f"{said}: tasks are given by --tasks FILE ({path} --help)"
    return f"{said} ({path} --help)"


def _takes(message: str) -> tuple[str, str] | None:
    """What a value has to be, from the words of what reads the command line, and one that would do: ``a whole number``,
    ``10``."""
    if least := re.search(r"(?:equal to |>=)(-?[\d.]+)", message):
        return f"a number, at least {least[1]}", least[1]
    if "integer" in message:
        return "a whole number", "10"
    return ("a number", "0.7") if re.search(r"number|float", message) else None


def no_command(name: str, commands: Iterable[str]) -> ConfigError:
    """The error for a command that is not here."""
    known = list(commands)
    if sentence := why(name):
        return ConfigError(f"{name}: {sentence}")
    if line := _LINES.get(name.lower()):
        return ConfigError(f"there is no command {name!r:.80}: {line}")
    near = nearest(name, {each: each for each in known})
    if not near and (sentence := misspelt_absent(name)):
        return ConfigError(f"{name:.80}: {sentence}")
    hint = f"nearest: {near[0]}" if near else f"commands: {', '.join(known)}"
    return ConfigError(f"there is no command {name!r:.80}; {hint}")


def _given(option: str, arguments: Sequence[str]) -> str | None:
    """What was written behind an option, in either way."""
    two = (value for word, value in pairwise(arguments) if word == option and not value.startswith("-"))
    return next(iter([*two, *(word.partition("=")[2] for word in arguments if word.startswith(f"{option}="))]), None)


def _no_option(option: str, path: str, command: Any, value: str | None) -> str:
    if sentence := why_chosen(option.lstrip("-"), value):
        return f"{option} {value}: {sentence}"
    if sentence := why(option):
        return f"{option}: {sentence}"
    taken = [each for parameter in command.params for each in parameter.opts if each.startswith("--")]
    keys = settings_keys(ALGORITHMS) if "--set" in taken else []
    by_set = {written: f"--set {key}=VALUE" for key in keys for written in (f"set.{key}", f"--{key.replace('.', '-')}")}
    if keys:
        by_set["--algorithm"] = "--set algorithm.name=VALUE"
    near = nearest(option, {**by_set, **{each: each for each in taken}})
    if option == "--val" and "--tasks" in taken:
        near = ["--tasks"]
    commands: dict[str, Any] = getattr(command, "commands", {})
    if users := [name for name, each in commands.items() if any(option in parameter.opts for parameter in each.params)]:
        return f"{path} has no option {option:.80}; it goes behind a command: {path} {users[0]} {option} ..."
    if not near and (sentence := misspelt_absent(option)):
        return f"{option:.80}: {sentence}"
    return (
        f"{path} has no option {option:.80}; {'nearest: ' + ' or '.join(near) if near else f'options: {path} --help'}"
    )
