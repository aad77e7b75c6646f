"""VERL: a config in verl's names, where an algorithm is passed. What each key means is in spellings/verl.py."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, cast

from agentlightning.agent.loading import short_errors
from agentlightning.errors import ConfigError
from agentlightning.nouns import Json
from agentlightning.records.json_values import kind_of, out_of_numpy
from agentlightning.settings.foreign import ForeignSettings
from agentlightning.spellings.verl_reading import Reading, read

NOT_HERE = {
    "trainer_cls": "the step is agentlightning.algorithms.policy_gradient's: subclass GRPO for another one",
    "daemon_cls": "the run opens the endpoint and runs the agents itself",
}

_CREDIT: dict[str, tuple[Json, str]] = {"algorithm.credit.scheme": ("mixed", "VERL")}
"""A row may have a reward of its own, and then that is what it is worth."""

_LISTED = 40
"""How many keys a line lists; a whole config of verl's has hundreds."""


class VERL:
    """Stands for the settings of ``config``, a nested dict, or dotted keys, in verl's names: ``Trainer(algorithm=
    VERL(config))``. What it does not say is what verl means by not saying it; without a config it is this package's own
    GRPO with its defaults. What is passed to Trainer itself, a file and the environment hold over it. docs/verl.md has
    every key.

    Raises ConfigError, a line for each problem, for keys that there are not, values of the wrong kind, keys that
    contradict each other, and what this version does not have.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, **others: Any) -> None:
        with short_errors():
            self.config = _plain(config)
            """The config, as plain values."""
            _refuse(others)
            self.reading: Reading | None = read(self.config) if self.config else None
            """What it means."""

    def foreign_settings(self) -> ForeignSettings:
        return ForeignSettings(_CREDIT) if self.reading is None else _told(self.reading)

    def __repr__(self) -> str:
        return f"VERL({self.config!r})"


def _told(reading: Reading) -> ForeignSettings:
    """A reading as the front door takes it."""
    resume = reading.resume
    if isinstance(resume, str):
        resume = Path(resume).name  # a run's folder is called by its id
    return ForeignSettings(
        {**_CREDIT, **reading.settings},
        reading.train,
        reading.val,
        reading.most_train,
        reading.most_val,
        "auto" if resume is True else resume,
        tuple(_notes(reading)),
    )


def _notes(reading: Reading) -> Iterator[str]:
    """A line for the keys that change nothing here, and one for each thing that is not done."""
    if reading.accepted:
        names = [key.removeprefix("actor_rollout_ref.") for key in reading.accepted]
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        yield f"verl: accepted, no effect on the result here (docs/verl.md): {', '.join(names[:_LISTED])}{more}"
    if reading.trackers:
        yield (
            f"verl: nothing is sent to {', '.join(reading.trackers)} (trainer.logger): each step is a line of the "
            "run's metrics.jsonl, and of TensorBoard files where that is installed"
        )


def _refuse(others: Mapping[str, Any]) -> None:
    for name, value in others.items():
        if name not in NOT_HERE:
            _wrong(f"VERL({name}=...): no such argument; it takes config, a dict in verl's names")
        if value is not None:
            _wrong(f"VERL({name}=...): {NOT_HERE[name]}: leave it out")


def _plain(config: object) -> dict[str, Json]:
    """A config as plain values: any mapping will do, also one whose values are mappings of a library."""
    if config is None:
        return {}
    if not isinstance(config, Mapping):
        hint = "; read the file and pass what is in it" if isinstance(config, str | Path) else ""
        _wrong(f"VERL({kind_of(config)}): expected a dict in verl's names, such as {{'data': {{...}}}}{hint}")
    return {str(key): _value(value) for key, value in cast("Mapping[object, object]", config).items()}


def _value(value: object) -> Json:
    if isinstance(value, Mapping):
        return _plain(cast("object", value))
    if isinstance(value, Path):
        return str(value)
    return copy.deepcopy(out_of_numpy(value))


def _wrong(sentence: str) -> NoReturn:
    raise ConfigError(sentence)
