"""What ``agl`` says of a command line that it cannot take: one line with what to do, for a command or an option that is not here too."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Any, cast

import typer

from agentlightning.errors import ConfigError
from agentlightning.spellings.absent import plain, why

UsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])
"""Of what reads the command line: click, or typer's own copy of it, by version."""


def usage_line(error: Any) -> str:
    """A usage error as one line."""
    option: str | None = getattr(error, "option_name", None)
    if error.ctx is None:
        return error.format_message()
    if option is not None and type(error).__name__ == "NoSuchOption":
        return _no_option(option, error.ctx.command_path, error.ctx.command)
    asked = f" ({error.ctx.command_path} --help)"
    return " ".join(error.format_message().split()).rstrip(".") + asked


def no_command(name: str, commands: Iterable[str]) -> ConfigError:
    """The error for a command that is not here."""
    known = list(commands)
    if sentence := why(name):
        return ConfigError(f"{name}: {sentence}")
    near = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"nearest: {near[0]}" if near else f"commands: {', '.join(known)}"
    return ConfigError(f"there is no command {name!r:.80}; {hint}")


def _no_option(option: str, path: str, command: Any) -> str:
    if sentence := why(option):
        return f"{option}: {sentence}"
    taken = [each for parameter in command.params for each in parameter.opts if each.startswith("--")]
    keys = [key for key in _settings() if plain(key.rpartition(".")[2]) == plain(option)] if "--set" in taken else []
    near = [f"--set {key}=VALUE" for key in keys] or difflib.get_close_matches(option, taken, n=1)
    return f"{path} has no option {option:.80}; {'nearest: ' + ' or '.join(near) if near else f'options: {path} --help'}"


def _settings() -> Iterator[str]:
    from agentlightning.config import resolve

    yield from resolve().values()
