"""Settings that a program gives in another program's names: what may be passed as the algorithm and stands for more
than that.

Whoever translates such names (compat/verl.py) hands over a `ForeignSettings`; the front door lays it below what it is
given itself. Knows no names of anybody's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from agentlightning.nouns import Json


@dataclass(frozen=True, slots=True)
class ForeignSettings:
    """What a program said elsewhere. ``settings`` are by dotted key (``learner.lr``, ``algorithm.group_size``), each
    with where it came from. ``train`` and ``val`` are files of tasks, for where no tasks are passed, and ``most_train``
    and ``most_val`` how many of them. ``resume`` is what `fit(resume=)` takes, ``"auto"`` for going on where there is
    something to go on with. ``notes`` are lines for people, said when a run begins."""

    settings: Mapping[str, tuple[Json, str]]
    train: Sequence[str] = ()
    val: Sequence[str] = ()
    most_train: int | None = None
    most_val: int | None = None
    resume: bool | str | None = None
    notes: Sequence[str] = ()

    def has(self, key: str, source: str | None) -> bool:
        """Whether a setting with this source is one of these."""
        return key in self.settings and self.settings[key][1] == source


@runtime_checkable
class SpeaksForeign(Protocol):
    """An argument that stands for settings."""

    def foreign_settings(self) -> ForeignSettings: ...
