"""What ``agl`` says of a command line that it cannot take: one line with what to do, for a command or an option that is not here too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import typer

from agentlightning.config_sources import settings_keys
from agentlightning.errors import ConfigError
from agentlightning.spellings.absent import why
from agentlightning.spellings.nearest import nearest

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
    near = nearest(name, {each: each for each in known})
    hint = f"nearest: {near[0]}" if near else f"commands: {', '.join(known)}"
    return ConfigError(f"there is no command {name!r:.80}; {hint}")


def _no_option(option: str, path: str, command: Any) -> str:
    if sentence := why(option):
        return f"{option}: {sentence}"
    taken = [each for parameter in command.params for each in parameter.opts if each.startswith("--")]
    keys = settings_keys() if "--set" in taken else []
    near = nearest(option, {**{f"set.{key}": f"--set {key}=VALUE" for key in keys}, **{each: each for each in taken}})
    return f"{path} has no option {option:.80}; {'nearest: ' + ' or '.join(near) if near else f'options: {path} --help'}"
