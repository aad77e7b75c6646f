"""An environment for each framework: a virtual environment with pinned packages, or a folder with node's modules."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from tests.frameworks.catalog import Framework

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).resolve().parents[2]

INSTALL_LIMIT = 600.0
"""Seconds for one installation."""


class CannotInstall(Exception):
    """A framework's packages cannot be had here. Its text is one line that says why."""


def prepare(framework: Framework, folder: Path) -> list[str]:
    """Makes the environment in ``folder``, unless it is there whole, and returns the command that runs the framework's
    program."""
    done = folder / ".packages"
    wanted = "\n".join(framework.packages)
    if not (done.is_file() and done.read_text() == wanted):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (_npm if framework.npm else _venv)(framework, folder)
        done.write_text(wanted)
    if not framework.npm:
        return [str(folder / "bin" / "python"), str(PROGRAMS / framework.program)]
    # node looks for modules beside the program that imports them.
    for program in PROGRAMS.glob("*.mjs"):
        shutil.copy(program, folder)
    return ["node", str(folder / framework.program)]


def _venv(framework: Framework, folder: Path) -> None:
    _run([sys.executable, "-m", "venv", str(folder)])
    _run([*_pip(folder), "install", "--quiet", "--progress-bar", "off", *framework.packages])


def with_ours(folder: Path) -> str:
    """The interpreter of a framework's environment, to which what agentlightning's core and the tests' own record need
    is added. Raises CannotInstall."""
    done = folder / ".ours"
    wanted = [
        each.replace(" ", "")
        for each in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    ]
    wanted.append("pytest")
    if not (done.is_file() and done.read_text() == "\n".join(wanted)):
        _run([*_pip(folder), "install", "--quiet", "--progress-bar", "off", *wanted])
        done.write_text("\n".join(wanted))
    return str(folder / "bin" / "python")


def _pip(folder: Path) -> list[str]:
    return [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]


def installed(folder: Path, packages: Sequence[str]) -> str:
    """The interpreter of an environment with these packages, which is made unless it is there whole. Raises
    CannotInstall."""
    done = folder / ".packages"
    if not (done.is_file() and done.read_text() == "\n".join(packages)):
        shutil.rmtree(folder, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(folder)])
        _run([*_pip(folder), "install", "--quiet", "--progress-bar", "off", *packages])
        done.write_text("\n".join(packages))
    return str(folder / "bin" / "python")


def fetched(package: str, folder: Path) -> Path:
    """A package's source archive, put into ``folder``. Raises CannotInstall."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    _run([*pip, "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", str(folder), package])
    return next(folder.glob("*.tar.gz"))


def _npm(framework: Framework, folder: Path) -> None:
    if shutil.which("npm") is None:
        raise CannotInstall("npm is not on this machine")
    (folder / "package.json").write_text('{"private": true}')
    _run(["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), *framework.packages])


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_LIMIT)
    except subprocess.TimeoutExpired as error:
        raise CannotInstall(f"not installed after {INSTALL_LIMIT:.0f} s: {' '.join(command[-4:])}") from error
    except subprocess.CalledProcessError as error:
        lines = [line.strip() for line in (error.stderr or error.stdout or "").splitlines() if line.strip()]
        wrong = [line for line in lines if "error" in line.lower()] or lines or [f"exit code {error.returncode}"]
        raise CannotInstall(wrong[-1][:300]) from error


def run_bounded(
    command: list[str], environment: dict[str, str], cwd: Path, seconds: float
) -> tuple[str, str, str | None]:
    """Standard output, standard error, and why the program did not end by itself with 0. It and all it started are
    ended by their process group's id."""
    program = subprocess.Popen(
        command, env={**os.environ, **environment}, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    wrong: str | None = None
    try:
        out, err = program.communicate(timeout=seconds)
        if program.returncode:
            wrong = f"exit code {program.returncode}"
    except subprocess.TimeoutExpired:
        wrong = f"not done after {seconds:.0f} s"
        _end(program)
        out, err = program.communicate()
    finally:
        _end(program)
    return out, err, wrong


def _end(program: subprocess.Popen[str]) -> None:
    try:
        os.killpg(program.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
