"""``agl train``, ``agl eval``, ``agl dev``: hand what was asked for to a Trainer. Each returns the command's exit code,
as cli/app.py lists them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from agentlightning.cli.output import write, write_json
from agentlightning.errors import ConfigError
from agentlightning.nouns import RunStatus
from agentlightning.settings.sources import Resolved
from agentlightning.store.run_lock import Asked

if TYPE_CHECKING:
    from agentlightning.run.trainer import Trainer

INTERRUPTED = 130


def train(
    resolved: Resolved,
    agent: str,
    *,
    tasks: Path | None,
    val: Path | None,
    grader: str | None,
    compact: str | None,
    resume: str | None,
    json: bool,
    arguments: tuple[str, ...] = (),
) -> int:
    trainer = _trainer(resolved, grader, compact, result_only=json)
    trainer.asked = _asked(resolved, arguments)
    result = trainer.fit(agent, _needed(tasks, "train"), val_dataset=val, resume=resume or False)
    if json:
        write_json(result.to_json())
    interrupted = result.status is RunStatus.STOPPED and result.stopped_by == "interrupted"
    return INTERRUPTED if interrupted else 0


def evaluate(
    resolved: Resolved, agent: str, *, tasks: Path | None, grader: str | None, compact: str | None, json: bool
) -> int:
    trainer = _trainer(resolved, grader, compact, result_only=True)
    evaluation = trainer.evaluate(agent, _needed(tasks, "eval"))
    write_json(evaluation.to_json()) if json else write(str(evaluation))
    return 0


def dev(
    resolved: Resolved, agent: str, *, tasks: Path | None, n: int, grader: str | None, compact: str | None, json: bool
) -> int:
    trainer = _trainer(resolved, grader, compact, result_only=True)
    report = trainer.dev(agent, _needed(tasks, "dev"), n)
    write_json(report.to_json()) if json else write(report)
    return INTERRUPTED if report.interrupted else 0 if report.trainable else 1


def _trainer(resolved: Resolved, grader: str | None, compact: str | None, *, result_only: bool) -> Trainer:
    """With ``result_only`` stdout belongs to the result, and progress goes to stderr."""
    from agentlightning.agent.loading import load_object
    from agentlightning.run.trainer import Trainer
    from agentlightning.views.live.choice import make_progress

    return Trainer(
        config=resolved,
        grader=load_object(grader) if grader is not None else None,
        compact=compact,
        progress=make_progress(True, sys.stderr if result_only else None),
    )


def _asked(resolved: Resolved, arguments: tuple[str, ...]) -> Asked:
    """The command as it was given, with the variables that settings came from."""
    read = {
        source.removeprefix("environment ") for source in resolved.sources.values() if source.startswith("environment ")
    }
    return Asked(arguments, os.getcwd(), {name: os.environ[name] for name in sorted(read) if name in os.environ})


def _needed(tasks: Path | None, command: str) -> Path:
    if tasks is None:
        raise ConfigError(f"agl {command} needs --tasks FILE: JSON lines, a JSON list, CSV, TSV or Parquet")
    return tasks
