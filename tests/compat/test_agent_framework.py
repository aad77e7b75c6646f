"""Agent Framework's lab package over this project, and what answers to its names where it is not installed.

The published packages themselves are run by `make test-lab`; here modules with the same first lines
stand for them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.frameworks import lab as table
from tests.imports import PACKAGE, ROOT

ASIDE = ROOT / PACKAGE / "compat" / "aside"
LAB = "agent_framework_lab_lightning"

OBSERVABILITY = {
    "2025": "class Settings:\n    enable_otel = False\n\nOBSERVABILITY_SETTINGS = Settings()\n",
    "2026": "on = False\n\ndef enable_instrumentation():\n    global on\n    on = True\n",
}
IS_ON = {
    "2025": "observability.OBSERVABILITY_SETTINGS.enable_otel",
    "2026": "observability.on",
}
FIRST_LINES = {
    "2025": "from agent_framework.observability import OBSERVABILITY_SETTINGS\nfrom agentlightning import AgentOpsTracer\n",
    "2026": "from agent_framework.observability import enable_instrumentation\n"
    "from agentlightning.tracer import AgentOpsTracer\n",
}
CLASS = "class AgentFrameworkTracer(AgentOpsTracer):\n    lab = True\n\n__all__ = ['AgentFrameworkTracer']\n"
HANDS_ON = f"from {LAB} import AgentFrameworkTracer\n"

YEARS = pytest.mark.parametrize("year", ["2025", "2026"])


def framework(site: Path, year: str) -> None:
    """A framework without its lab."""
    write(site / "agent_framework" / "__init__.py", "")
    write(site / "agent_framework" / "observability.py", OBSERVABILITY[year])
    write(site / "agent_framework" / "lab" / "__init__.py", "")


def lab(site: Path, year: str, body: str = CLASS) -> None:
    framework(site, year)
    write(site / LAB / "__init__.py", FIRST_LINES[year] + body)
    write(site / "agent_framework" / "lab" / "lightning" / "__init__.py", HANDS_ON)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def run(site: Path, *lines: str) -> str:
    """What a program prints, or the last line of its error, where the path is as an installation has it."""
    path = [str(site), str(ROOT), str(ASIDE)]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], cwd=site, capture_output=True, text=True, check=False, timeout=600,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
    )  # fmt: skip
    return (done.stdout if done.returncode == 0 else done.stderr.strip().splitlines()[-1]).strip()


@YEARS
@pytest.mark.parametrize(
    "first",
    [
        "pass",
        "import agentlightning",
        "from agentlightning import AgentOpsTracer",
        "from agentlightning.tracer import AgentOpsTracer",
        "import agent_framework.lab.lightning",
    ],
)
def test_the_labs_module_has_init_and_our_public_names_whatever_is_imported_first(
    tmp_path: Path, year: str, first: str
):
    lab(tmp_path, year)
    assert run(
        tmp_path,
        first,
        f"from {LAB} import AgentFrameworkTracer, LLM, init, rollout",
        "import agentlightning",
        "from agent_framework import observability",
        "from agent_framework.lab.lightning import AgentFrameworkTracer as again",
        "init()",
        f"print(AgentFrameworkTracer.lab, again is AgentFrameworkTracer, {IS_ON[year]})",
        "print(LLM is agentlightning.LLM, rollout is agentlightning.rollout)",
    ) == "True True True\nTrue True"  # fmt: skip


@YEARS
def test_what_the_lab_has_of_its_own_stays(tmp_path: Path, year: str):
    lab(tmp_path, year, "init = 'its own'\nrollout = 'its own'\n" + CLASS)
    program = f"from {LAB} import init, rollout, LLM; print(init, rollout, LLM.__name__)"
    assert run(tmp_path, program) == "its own its own LLM"


def test_a_users_own_tracer_leaves_its_module_as_it_is(tmp_path: Path):
    write(tmp_path / "mine.py", "from agentlightning import AgentOpsTracer\n" + CLASS)
    assert run(tmp_path, "import mine; print(hasattr(mine, 'init'), hasattr(mine, '__getattr__'))") == "False False"


@YEARS
@pytest.mark.parametrize("first", ["pass", "import agentlightning"])
def test_without_the_lab_a_package_of_ours_answers(tmp_path: Path, year: str, first: str):
    framework(tmp_path, year)
    assert run(
        tmp_path,
        first,
        f"from {LAB} import AgentFrameworkTracer, init, rollout",
        "import agentlightning",
        "from agent_framework import observability",
        "init()",
        f"print(issubclass(AgentFrameworkTracer, agentlightning.AgentOpsTracer), {IS_ON[year]})",
        "print(rollout is agentlightning.rollout)",
    ) == "True True\nTrue"  # fmt: skip


@YEARS
def test_init_comes_from_the_labs_other_name_too_where_a_program_begins_with_it(tmp_path: Path, year: str):
    lab(tmp_path, year)
    program = f"from {LAB.replace('agent_framework_lab_', 'agent_framework.lab.')} import init; import {LAB}"
    assert run(tmp_path, program, f"print(init is {LAB}.init)") == "True"


def test_the_frameworks_own_path_is_there_where_the_lab_is_and_only_there(tmp_path: Path):
    framework(tmp_path, "2026")
    said = run(tmp_path, "import agentlightning, agent_framework.lab.lightning")
    assert said == "ModuleNotFoundError: No module named 'agent_framework.lab.lightning'"


@YEARS
@pytest.mark.parametrize("first", ["pass", "import agentlightning"])
def test_where_the_lab_is_installed_its_own_file_comes_first(tmp_path: Path, year: str, first: str):
    lab(tmp_path, year)
    program = f"import {LAB} as it; print(it.__file__)"
    assert run(tmp_path, first, program) == str(tmp_path / LAB / "__init__.py")


def test_all_names_come_with_a_star(tmp_path: Path):
    framework(tmp_path, "2026")
    program = f"from {LAB} import *; print(init.__name__, AgentFrameworkTracer.__name__, rollout.__name__)"
    assert run(tmp_path, program) == "init AgentFrameworkTracer rollout"


def test_the_tracer_turns_the_framework_on_before_it_begins(tmp_path: Path):
    framework(tmp_path, "2026")
    assert run(
        tmp_path,
        f"from {LAB} import AgentFrameworkTracer",
        "from agent_framework import observability",
        "tracer = AgentFrameworkTracer()",
        "before = observability.on",
        "tracer.init()",
        "print(before, observability.on)",
        "tracer.teardown()",
    ) == "False True"  # fmt: skip


def test_a_framework_that_is_not_installed_is_named_with_what_to_install(tmp_path: Path):
    said = run(tmp_path, f"from {LAB} import init", "init()")
    assert said.endswith("the framework is not installed: pip install agent-framework-core"), said


def test_a_framework_that_is_too_old_is_told_which_version_is_needed(tmp_path: Path):
    framework(tmp_path, "2026")
    write(tmp_path / "agent_framework" / "observability.py", "")
    said = run(tmp_path, f"from {LAB} import init", "init()")
    assert said.endswith("pip install 'agent-framework-core>=1.0.0b251001'"), said


def test_a_framework_that_cannot_be_imported_says_why_itself(tmp_path: Path):
    framework(tmp_path, "2026")
    write(tmp_path / "agent_framework" / "observability.py", "import no_such_library\n")
    said = run(tmp_path, f"from {LAB} import init", "init()")
    assert said == "ModuleNotFoundError: No module named 'no_such_library'"


def test_no_file_of_the_lab_is_written_over():
    """A wheel holds our own package and a line that puts the folder aside at the end of the path."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["packages"] == [PACKAGE]
    ((source, target),) = wheel["force-include"].items()
    assert ROOT / (ROOT / source).read_text().strip() == ASIDE
    assert target.endswith(".pth") and "/" not in target
    assert {path.name for path in ASIDE.iterdir()} - {"__pycache__"} == {f"{LAB}.py"}


def test_the_page_is_what_the_versions_gave_when_they_were_installed():
    results = json.loads(table.RESULTS.read_text())
    assert table.PAGE.read_text() == table.page(results)
    assert set(results["rows"]) == {pair.name for pair in table.PAIRS}
    for name, row in results["rows"].items():
        assert row["files"] == [] and row["imports"] == "whole" and row["exact"] == row["conversations"] > 0, name
        theirs = name.startswith("1.")
        assert row["answers"] == ("the lab" if theirs else "this package"), name


@pytest.mark.parametrize(
    ("requires", "taken"),
    [
        (['agentlightning<0.4.0,>=0.2.0; extra == "lightning"', "agent-framework-core"], True),
        (['agentlightning<0.3.0,>=0.2.0; extra == "lightning"'], False),
        (["agent-framework-core"], None),
    ],
)
def test_a_version_whose_extra_would_replace_this_package_is_seen(requires: list[str], taken: bool | None):
    assert table.accepts(requires) is taken


def test_a_version_of_the_lab_that_is_not_published_is_refused_with_those_that_are(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        table.asked_for(["2.0"])
    assert "there is no version 2.0 here: they are 1.0.0b251024" in capsys.readouterr().err
