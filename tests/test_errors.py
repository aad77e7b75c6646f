"""What an error says to install is right for this installation: a checkout by its path, an installed package by its
name."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from agentlightning.errors import install
from tests.imports import PACKAGE, ROOT, modules


def test_a_checkout_is_installed_by_its_path() -> None:
    """By its name pip could take the other package that is published under it."""
    assert install("train") == f'pip install "{ROOT}[train]"'


def test_an_installed_package_is_asked_for_its_extra_by_name(tmp_path: Path) -> None:
    shutil.copytree(ROOT / PACKAGE, tmp_path / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
    program = "from agentlightning.errors import install; print(install('train'))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=600
    )
    assert done.stdout == 'pip install "agentlightning[train]"\n'


def test_the_extras_that_errors_name_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {
        extra
        for path in modules().values()
        for extra in re.findall(r"""\binstall\(["'](\w+)["']\)""", path.read_text())
    }
    assert {"train", "demo", "data"} <= named <= set(extras)
    by_name = [
        name for name, path in modules().items() if re.search(r"pip install .?agentlightning\[", path.read_text())
    ]
    assert by_name == [], "errors.install knows how this installation is extended"
