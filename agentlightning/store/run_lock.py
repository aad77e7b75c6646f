"""Standing: whether a recorded run is alive, and how to go on with one that is not. The lock of its folder tells;
asking changes nothing.

The lock belongs to the process that runs the run and goes with it, also after ``kill -9``: a run whose status is
``running`` and whose lock nobody holds is dead. Loads no torch and no store.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import cast

import orjson

from agentlightning.errors import AgentLightningError, ConfigError
from agentlightning.nouns import Json, Mode, RunRecord, RunStatus
from agentlightning.spellings.absent import why
from agentlightning.text import at_home

try:
    import fcntl
except ImportError:  # Windows: nothing runs there, and nothing that ran can be asked
    raise ConfigError(f"runs are neither made nor shown on {sys.platform}: {why('windows')}") from None

DEAD = "dead"
"""What is said of a run whose status is ``running`` and whose process is gone."""

LOCK = "lock"
PATIENCE = 1.0
"""Seconds after which a lock counts as another run's: whoever only asks holds it for an instant."""


class RunLock:
    """Holds a run's folder, so that two processes never train one run. Raises AgentLightningError where another holds
    it."""

    def __init__(self, folder: Path, run_id: str) -> None:
        self._file = (folder / LOCK).open("w")
        until = time.monotonic() + PATIENCE
        while not _take(self._file.fileno(), fcntl.LOCK_EX):
            if time.monotonic() > until:
                self._file.close()
                raise AgentLightningError(f"run {run_id} is in use by another process: wait for it to end, or stop it")
            time.sleep(0.02)

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self._file.close()


def is_held(folder: Path) -> bool:
    """Whether a process holds the run of this folder. Where that cannot be asked it counts as held: nothing is said to
    be dead that may be alive."""
    try:
        with (folder / LOCK).open("rb") as file:
            return not _take(file.fileno(), fcntl.LOCK_SH)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def _take(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def folder_of(record: RunRecord, place: Path) -> Path | None:
    """Where a run's folder is: in ``place``, the output folder that was named, else where the record says. None where
    it is gone."""
    return next((folder for folder in (place / record.id, Path(record.folder)) if folder.is_dir()), None)


# --------------------------------------------------------------------------- how to go on


@dataclass(frozen=True, slots=True)
class Asked:
    """The command that asked for a run: ``arguments`` of ``agl``, the working directory, and the ``AGL_`` variables
    that it read."""

    arguments: tuple[str, ...]
    directory: str
    environment: Mapping[str, str]

    def to_json(self) -> dict[str, Json]:
        return {"arguments": list(self.arguments), "directory": self.directory, "environment": dict(self.environment)}

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Asked:
        return cls(tuple(value["arguments"]), value["directory"], value["environment"])


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of a run besides its record. ``folder`` is None where it is gone; ``resume`` says how to go on, ""
    where there is nothing to go on with."""

    folder: Path | None
    dead: bool = False
    resume: str = ""


def standing_of(record: RunRecord, place: Path) -> Standing:
    """``place`` is the output folder in which the record was found."""
    folder = folder_of(record, place)
    dead = record.status is RunStatus.RUNNING and (folder is None or not is_held(folder))
    over = dead or record.status in (RunStatus.STOPPED, RunStatus.FAILED)
    if not over or record.config.get("mode") != Mode.TRAIN:
        return Standing(folder, dead)
    return Standing(folder, dead, how_to_resume(description_of(record, folder), record.id, folder or place / record.id))


def description_of(record: RunRecord, folder: Path | None) -> Mapping[str, Json]:
    """The run's ``config.json``, which a resume writes anew; the record's where there is none."""
    try:
        found: Json = orjson.loads((folder / "config.json").read_bytes()) if folder is not None else None
    except (OSError, ValueError):
        found = None
    return cast("Mapping[str, Json]", found) if isinstance(found, dict) and "config" in found else record.config


def how_to_resume(description: Mapping[str, Json], run_id: str, folder: Path) -> str:
    """The command that goes on with a run whose ``config.json`` is ``description``, to be copied into a shell; for one
    that a program began, the call."""
    asked = description.get("asked")
    if not isinstance(asked, dict):
        return (
            f"fit(agent, train, val, resume={run_id!r}), with the same settings, tasks and resources, and "
            f"output_dir={str(folder.parent)!r}"
        )
    known = Asked.from_json(cast("Mapping[str, Json]", asked))
    arguments = _without_resume(known.arguments)
    if model := cast("Mapping[str, Mapping[str, Json]]", description["config"]).get("model", {}).get("path"):
        arguments = _with_model(arguments, str(model), known.directory)
    given = cast("Mapping[str, Json]", description["config"]).get("output_dir") or "runs"
    if (Path(known.directory) / at_home(str(given))).resolve() != folder.parent.resolve():  # it was moved
        arguments = _with(arguments, "--output-dir", str(folder.parent.resolve()))
    variables = [f"{name}={shlex.quote(value)}" for name, value in known.environment.items()]
    command = " ".join([*variables, shlex.join(["agl", *arguments, "--resume", run_id])])
    elsewhere = Path(known.directory) != Path.cwd()
    gone = [text for text in _files(arguments) if not (Path(known.directory) / at_home(text)).exists()]
    again = f"  # give again what is gone: {', '.join(gone)}" if gone else ""
    return f"cd {shlex.quote(known.directory)} && {command}{again}" if elsewhere else command + again


def _without_resume(arguments: Sequence[str]) -> list[str]:
    """The arguments without ``--resume`` and its value, as ``agl`` passes them on: ``--resume=VALUE`` or two words."""
    kept: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--resume":
            next(words, None)
        elif not word.startswith("--resume="):
            kept.append(word)
    return kept


def _with_model(arguments: Sequence[str], path: str, directory: str) -> list[str]:
    """The arguments with the model that was meant: what `latest` is changes with time."""
    given = _given(arguments, "--model")
    if given is None or given == path or at_home(Path(directory, given)).absolute() == Path(path):
        return list(arguments)
    return _with(arguments, "--model", path)


def _with(arguments: Sequence[str], option: str, value: str) -> list[str]:
    """The arguments with the option at this value."""
    changed = list(arguments)
    for i, word in enumerate(changed):
        if word == option and i + 1 < len(changed):
            changed[i + 1] = value
            return changed
        if word.startswith(f"{option}="):
            changed[i] = f"{option}={value}"
            return changed
    return [*changed, option, value]


def _given(arguments: Sequence[str], option: str) -> str | None:
    """What an option was given, in either way; None where it was not."""
    two = [value for word, value in pairwise(arguments) if word == option]
    return next(iter([*two, *(word.partition("=")[2] for word in arguments if word.startswith(f"{option}="))]), None)


def _files(arguments: Sequence[str]) -> list[str]:
    """The files that the arguments name."""
    named = [value for option in ("--tasks", "--val", "--config") if (value := _given(arguments, option)) is not None]
    return named + [word.partition(":")[0] for word in arguments if ".py:" in word and not word.startswith("-")]
