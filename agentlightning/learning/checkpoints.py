"""Checkpoints: a Hugging Face folder that any tool loads, with beside it what a resumed run needs. Written whole or not
at all.

A checkpoint is made in a hidden folder beside its final place, flushed to disk, and renamed; ``checkpoint.json`` is
written last and lists the other files with their sizes. What a kill, a crash or a full disk leaves behind is therefore
never taken for a checkpoint, and the one before it stays as it was. This module decides nothing about when to save.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from agentlightning.errors import ConfigError, StoreError
from agentlightning.learning.learner import Learner
from agentlightning.nouns import Json

MANIFEST = "checkpoint.json"
STATE = "training_state.pt"
_PARTIAL, _TRASH = ".partial-", ".trash-"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint. ``score`` is the validation score it was saved with, None without one; ``extra`` is the
    caller's own JSON."""

    path: Path
    step: int
    version: int
    score: float | None
    extra: Mapping[str, Json]


def save(
    folder: Path,
    learner: Learner,
    tokenizer: PreTrainedTokenizerBase,
    *,
    step: int,
    version: int,
    score: float | None = None,
    extra: Mapping[str, Json] | None = None,
) -> Checkpoint:
    """Writes ``folder/step-NNNNNN`` (with a suffix where that exists: nothing complete is ever overwritten) and returns
    it.

    Blocks for as long as the disk takes; the learner must not step meanwhile. Raises StoreError when it cannot be
    written; what was written of it is removed and earlier checkpoints are untouched.
    """
    partial = folder / f"{_PARTIAL}step-{step:06d}-{os.getpid()}"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        with _no_bars():
            cast("Any", learner.model).save_pretrained(partial)
            cast("Any", tokenizer).save_pretrained(partial)
        with (partial / STATE).open("wb") as file:
            torch.save({"learner": learner.state(), "random": _random_state()}, file)
        files = {
            str(path.relative_to(partial)): path.stat().st_size for path in sorted(partial.rglob("*")) if path.is_file()
        }
        for name in files:
            _flush(partial / name)
        content = {
            "step": step,
            "version": version,
            "score": score,
            "extra": dict(extra or {}),
            "files": files,
            "complete": True,
        }
        (partial / MANIFEST).write_text(json.dumps(content, indent=2, allow_nan=False))
        _flush(partial / MANIFEST)
        _flush(partial)
        final = _free_name(folder, step)
        partial.rename(final)
        _flush(folder)
    except (OSError, RuntimeError, SafetensorError) as error:
        # torch and safetensors report a failed write as errors of their own.
        shutil.rmtree(partial, ignore_errors=True)
        free = shutil.disk_usage(folder).free / 1e6 if folder.is_dir() else 0.0
        raise StoreError(
            f"the checkpoint of step {step} could not be written to {folder} ({free:,.0f} MB free there): "
            f"{_one_line(error)}; earlier checkpoints are untouched"
        ) from error
    return Checkpoint(final, step, version, score, dict(extra or {}))


def set_score(checkpoint: Checkpoint, score: float) -> None:
    """Notes the validation score of a checkpoint that was saved before it was known. Whole or not at all; raises
    StoreError."""
    path = checkpoint.path / MANIFEST
    partial = checkpoint.path / f"{_PARTIAL}{MANIFEST}"
    try:
        content = cast("dict[str, Any]", json.loads(path.read_text()))
        partial.write_text(json.dumps({**content, "score": score}, indent=2, allow_nan=False))
        _flush(partial)
        partial.rename(path)
        _flush(checkpoint.path)
    except OSError as error:
        raise StoreError(f"the score of {checkpoint.path} could not be written: {_one_line(error)}") from error


def complete(folder: Path) -> list[Checkpoint]:
    """The complete checkpoints in a folder, oldest first. Anything half-written is passed over."""
    if not folder.is_dir():
        return []
    found = [checkpoint for path in folder.glob("step-*") if (checkpoint := _read(path)) is not None]
    return sorted(found, key=lambda checkpoint: (checkpoint.step, _suffix(checkpoint.path)))


def latest(folder: Path) -> Checkpoint | None:
    """The latest complete checkpoint, None without one."""
    return next(reversed(complete(folder)), None)


def best(folder: Path) -> Checkpoint | None:
    """The complete checkpoint with the highest score, the later one on a tie; None where none has a score."""
    return _best(complete(folder))


def prune(folder: Path, keep: int, best: bool) -> list[Path]:
    """Removes all complete checkpoints but the latest ``keep`` (at least 1) and, with ``best``, the one with the
    highest score; returns what went.

    Also removes what killed processes left half-written. The caller is the only one that writes here.
    """
    if keep < 1:
        raise ValueError(f"keep={keep}: at least the latest checkpoint is kept")
    every = complete(folder)
    top = _best(every) if best else None
    doomed = [checkpoint.path for checkpoint in every[:-keep] if checkpoint is not top]
    for path in doomed:
        # A rename is whole or not at all: a kill halfway through the removal leaves nothing that looks like a
        # checkpoint.
        trash = folder / f"{_TRASH}{path.name}"
        shutil.rmtree(trash, ignore_errors=True)
        path.rename(trash)
    for path in folder.glob(".*"):
        if path.name.startswith((_PARTIAL, _TRASH)):
            shutil.rmtree(path, ignore_errors=True)
    return doomed


def load_state(checkpoint: Checkpoint, learner: Learner) -> None:
    """Puts the checkpoint's weights into the learner's model, in place, and takes over its training state and the
    random states.

    Raises ConfigError where the checkpoint belongs to another model, StoreError where it cannot be read.
    """
    model = learner.model
    try:
        state = cast("dict[str, Any]", torch.load(checkpoint.path / STATE, map_location="cpu", weights_only=True))
        with _no_bars():
            loaded = cast(
                "PreTrainedModel", cast("Any", type(model)).from_pretrained(checkpoint.path, dtype=model.dtype)
            )
    except (OSError, RuntimeError, SafetensorError, pickle.UnpicklingError) as error:
        raise StoreError(f"checkpoint {checkpoint.path} cannot be read: {_one_line(error)}") from error
    own, saved = model.state_dict(), loaded.state_dict()
    if {name: tensor.shape for name, tensor in own.items()} != {name: tensor.shape for name, tensor in saved.items()}:
        raise ConfigError(
            f"checkpoint {checkpoint.path} belongs to another model: its weights have other names or shapes"
        )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(saved[name])
    learner.load_state(cast("dict[str, Any]", state["learner"]))
    _set_random_state(cast("dict[str, Any]", state["random"]))


# --------------------------------------------------------------------------- parts


def _best(checkpoints: list[Checkpoint]) -> Checkpoint | None:
    scored = [checkpoint for checkpoint in checkpoints if checkpoint.score is not None]
    return max(reversed(scored), key=lambda checkpoint: checkpoint.score or 0.0, default=None)


def _read(path: Path) -> Checkpoint | None:
    """The checkpoint at a path, None where it is not complete."""
    try:
        content = cast("dict[str, Any]", json.loads((path / MANIFEST).read_text()))
        whole = content["complete"] is True and all(
            (path / name).stat().st_size == size for name, size in content["files"].items()
        )
        return (
            Checkpoint(path, content["step"], content["version"], content["score"], content["extra"]) if whole else None
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _suffix(path: Path) -> int:
    parts = path.name.split("-")
    return int(parts[2]) if len(parts) > 2 and parts[2].isdigit() else 1


def _free_name(folder: Path, step: int) -> Path:
    path, number = folder / f"step-{step:06d}", 1
    while path.exists():
        number += 1
        path = folder / f"step-{step:06d}-{number}"
    return path


def _flush(path: Path) -> None:
    """Forces a file's content, or a folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _no_bars() -> Generator[None]:
    """transformers draws progress bars on the terminal, which belongs to the run's own view."""
    before = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if before:
            logging.enable_progress_bar()


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def _random_state() -> dict[str, Any]:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"python": random.getstate(), "torch": torch.get_rng_state(), "cuda": cuda}


def _set_random_state(state: Mapping[str, Any]) -> None:
    random.setstate(cast("tuple[Any, ...]", state["python"]))
    torch.set_rng_state(cast("torch.Tensor", state["torch"]))
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
