"""The rules of the house that a machine can check: who may import whom, how light an import is, and what no file may
say."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.imports import PACKAGE, ROOT, graph, imports, loads, modules

TORCH = {"torch", "transformers", "safetensors", "peft"}
ROOMS = (
    ("nouns",), ("errors",), ("text",), ("logs",), ("scoring",), ("spellings",), ("records",), ("settings",), ("agent",),
    ("tracing",), ("store",), ("templates",), ("engines",), ("gateway",), ("credit",), ("learning",), ("policies",), ("algorithms",),
    ("runners",), ("views",), ("run",), ("cli",), ("compat",),
)  # fmt: skip
"""In the order of DESIGN: each imports itself and those before it. The package itself and `__main__` are doors, not rooms."""
AGENT_SIDE = (
    "agent",
    "scoring",
    "records",
    "settings",
    "spellings",
    "runners",
    "algorithms",
    "compat",
    "cli",
    "logs",
    "nouns",
    "errors",
)
TORCH_MAY = ("engines.local", "engines.models", "learning", "policies")
"""Where torch may be imported: modules whose name begins so."""


def within(name: str, room: str) -> bool:
    return name == f"{PACKAGE}.{room}" or name.startswith(f"{PACKAGE}.{room}.")


def broken(rooms: tuple[str, ...], forbidden: set[str]) -> list[str]:
    """The import chains from modules of ``rooms`` to a forbidden module or room."""
    found: list[str] = []
    for name in graph():
        if any(within(name, room) for room in rooms):
            for target, chain in loads(name).items():
                if target in forbidden or any(within(target, room) for room in forbidden):
                    found.append(" -> ".join(chain))
    return found


def room(name: str) -> str | None:
    """The room of a module; None for what stands outside of them."""
    parts = name.split(".")
    return parts[1] if parts[0] == PACKAGE and len(parts) > 1 and parts[1] != "__main__" else None


def test_a_room_imports_only_rooms_before_it():
    """Inside functions and under TYPE_CHECKING too."""
    order = {name: place for place, names in enumerate(ROOMS) for name in names}
    wrong: list[str] = []
    for name, path in modules().items():
        own = room(name)
        if own is None:
            continue
        assert own in order, f"{name} is in no room: say where {own} stands"
        for target in imports(path, everywhere=True, types=True):
            theirs = room(target)
            if theirs in order and order[theirs] > order[own]:
                wrong.append(f"{name} imports {target}")
    assert wrong == []


def test_the_gateway_never_imports_learning():
    assert broken(("gateway",), {"learning"}) == []


def test_engines_never_import_the_gateway():
    assert broken(("engines",), {"gateway"}) == []


def test_the_nouns_import_nothing_of_ours():
    assert not [
        name for name in loads(f"{PACKAGE}.nouns") if name.startswith(f"{PACKAGE}.") and name != f"{PACKAGE}.nouns"
    ]


def test_what_runs_beside_agents_loads_no_torch():
    assert broken(AGENT_SIDE, TORCH) == []


def test_torch_is_loaded_only_by_what_trains_or_samples():
    allowed = tuple(f"{PACKAGE}.{name}" for name in TORCH_MAY)
    found = {
        name
        for name, path in modules().items()
        if any(target.split(".")[0] == "torch" for target in imports(path, everywhere=True))
    }
    assert {name for name in found if not name.startswith(allowed)} == set()


def test_the_package_itself_loads_nothing():
    standard = set(sys.stdlib_module_names)
    assert set(loads(PACKAGE)) - standard == {PACKAGE}


def test_every_import_of_another_package_is_declared():
    """Core modules (all but what trains, samples or draws) need only what the core install brings."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    def names(requirements: list[str]) -> set[str]:
        return {re.split(r"[\[<>=~! ]", requirement)[0].lower().replace("_", "-") for requirement in requirements}

    core = names(project["dependencies"])
    extras = core.union(
        *(names(requirements) for extra, requirements in project["optional-dependencies"].items() if extra != "dev")
    )
    owners = packages_distributions()
    missing: list[str] = []
    for name, path in modules().items():
        for everywhere, declared in ((False, core), (True, extras)):
            if not everywhere and name.startswith(
                tuple(f"{PACKAGE}.{room}" for room in (*TORCH_MAY, "templates", "engines"))
            ):
                continue
            for target in imports(path, everywhere=everywhere):
                first = target.split(".")[0]
                if first == PACKAGE or first in sys.stdlib_module_names:
                    continue
                distributions = {owner.lower().replace("_", "-") for owner in owners.get(first, [first])}
                if not distributions & declared:
                    missing.append(f"{name} imports {first}, which {'no extra' if everywhere else 'the core'} brings")
    assert sorted(set(missing)) == []


def test_public_names_are_loaded_when_first_used():
    program = (
        "import sys, agentlightning as a\n"
        "before = [m for m in sys.modules if m.startswith('agentlightning.')]\n"
        "values = [getattr(a, name) for name in a.__all__]\n"
        "print(before, 'torch' in sys.modules, all(v is not None for v in values), set(a.__all__) <= set(dir(a)))\n"
    )
    assert run(program) == "[] False True True"


@pytest.mark.parametrize("name", ["APO", "LightningStoreClient"])
def test_a_name_without_a_part_behind_it_is_refused_by_name(name: str):
    with pytest.raises(ImportError, match=rf"has no {name}: \w+"):
        exec(f"from agentlightning import {name}")


def test_an_unknown_name_is_an_ordinary_attribute_error():
    import agentlightning

    assert not hasattr(agentlightning, "no_such_name")


def test_importing_the_package_takes_under_a_third_of_a_second():
    """Of processor time, the least of several: what else runs on the machine says nothing of it. The figure itself is
    in benchmarks/imports.py."""

    def seconds(program: str) -> float:
        timed = f"import time; t = time.process_time(); {program}; print(time.process_time() - t)"
        return min(float(run(timed)) for _ in range(5))

    assert seconds("import agentlightning") < 0.3
    assert seconds("from agentlightning import emit_reward, rollout") < 1.0


def run(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True, timeout=600
    ).stdout.strip()


def tracked() -> list[Path]:
    """The files of the repository: what git knows or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]


def test_every_module_says_why_it_exists():
    assert [
        name
        for name, path in modules().items()
        if path.read_text().strip() and not path.read_text().startswith(('"""', 'r"""'))
    ] == []


def test_no_file_names_the_machine_it_was_written_on():
    words = re.compile(
        "|".join(("/ro" + "ot/", "/wo" + "rk/", "/tmp/" + "v/", "index" + "-url", "/opt/" + "(wheels|pypi)"))
    )
    found: list[str] = []
    for path in tracked():
        if path.suffix in {".png", ".bin", ".npz"}:
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if words.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert found == []


@pytest.mark.parametrize(
    "name",
    [
        "agentlightning.agent.calling",
        "agentlightning.gateway",
        "agentlightning.store",
        "agentlightning.runners",
        "agentlightning.views.dev.report",
    ],
)
def test_the_core_needs_none_of_what_trains(name: str) -> None:
    """Invariant 11: an install without ``[train]`` has everything up to the engine."""
    absent = ("torch", "transformers", "tokenizers", "jinja2", "llguidance", "numpy", "safetensors", "huggingface_hub")
    program = f"import sys; sys.modules.update(dict.fromkeys({absent!r})); import {name}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
