"""From a command's flags to resolved settings."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from agentlightning.algorithms import ALGORITHMS
from agentlightning.errors import ConfigError
from agentlightning.nouns import Json
from agentlightning.run.model_choice import choose_recorded_model, with_model
from agentlightning.settings.sources import Resolved, resolve
from agentlightning.text import at_home

KEYS = {
    "model": "model.path",
    "n_runners": "runner.n_runners",
    "isolation": "runner.isolation",
    "group_size": "algorithm.group_size",
    "host": "gateway.host",
    "port": "gateway.port",
}
"""The setting a flag stands for, where it is not called the same."""


def settings(config: Path | None, sets: Sequence[str] | None, **flags: Json) -> Resolved:
    """Defaults, the file, the environment, then ``--set KEY=VALUE`` and the flags that were given. Raises
    ConfigError."""
    values: dict[str, Json] = {}
    names: dict[str, str] = {}
    for item in sets or ():
        key, equals, value = item.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {item}: expected KEY=VALUE, e.g. --set learner.lr=1e-5")
        _give(values, names, key.strip(), value, "--set")
    for flag, value in flags.items():
        if value is not None:
            _give(
                values,
                names,
                KEYS.get(flag, flag),
                str(value) if isinstance(value, Path) else value,
                f"--{flag.replace('_', '-')}",
            )
    return resolve(ALGORITHMS, config, values, os.environ, flag_names=names)


def choose(resolved: Resolved) -> tuple[Resolved, str]:
    """The settings with the model that is meant, for commands that open no run, and what is to be said of it. Raises
    ConfigError."""
    config = resolved.config
    choice = asyncio.run(
        choose_recorded_model(config.model.path, at_home(config.output_dir).resolve(), config.record_url)
    )
    return with_model(resolved, choice.path), choice.said


def _give(values: dict[str, Json], names: dict[str, str], key: str, value: Json, flag: str) -> None:
    if key in values:
        raise ConfigError(f"{key} is given twice, by {names[key]} and by {flag}: leave one of them out")
    values[key] = value
    names[key] = flag
