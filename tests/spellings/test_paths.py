"""Whatever programs of this package's name import answers with a sentence, and nothing that only looks for a module is
disturbed by that."""

from __future__ import annotations

import importlib
import importlib.metadata
import pickle
import pkgutil
import re
import subprocess
import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import pytest

import agentlightning
from agentlightning.spellings.paths import ELSEWHERE, MODULES, why_no_module

PROGRAMS = """\
from agentlightning import APO
from agentlightning import LightningStoreClient
from agentlightning import LightningStoreServer
from agentlightning.client import AgentLightningClient
from agentlightning.store import LightningStoreClient
from agentlightning import AgentLightningServer
from agentlightning import PPO
from agentlightning import GRPOConfig, GRPOTrainer
from agentlightning import SFTTrainer
from agentlightning.algorithm import APO, Baseline, algo
from agentlightning.algorithm.apo import APO
from agentlightning.tracer import get_last_trace
from agentlightning.types import Rollout, RolloutV2
from agentlightning.tracer.triplet import TraceTree
from agentlightning.emitter.utils import get_tracer
from agentlightning.store.client_server import LightningStoreClient
from agentlightning.trainer.init_utils import build_component
from agentlightning.server import AgentLightningServer
from agentlightning.env_var import LightningEnvVar
from agentlightning.llm_proxy import LLMProxy
from agentlightning.verl import entrypoint
import agentlightning.verl.trainer
import agentlightning.instrumentation.vllm
"""


@pytest.mark.parametrize("line", PROGRAMS.splitlines())
def test_what_programs_import_is_refused_with_a_sentence(line: str) -> None:
    with pytest.raises(ImportError) as refused:
        exec(line)
    said = str(refused.value)
    assert re.match(r"agentlightning(\.\w+)* \(0\.3\.\d+\) has no \w+: \w[^\n]{20,}$", said), said
    assert "No module named" not in said and refused.value.name is not None
    assert refused.value.name not in sys.modules


@pytest.mark.parametrize("path", MODULES)
def test_a_path_of_the_table_has_no_module_behind_it(path: str) -> None:
    assert not any(find_real(path, parent) for parent in [path.rpartition(".")[0]])
    with pytest.raises(ImportError, match="has no "):
        importlib.import_module(f"agentlightning.{path}")


def find_real(path: str, parent: str) -> bool:
    """Whether Python itself finds the module, or its parent has a value of that name."""
    holder = importlib.import_module(f"agentlightning.{parent}" if parent else "agentlightning")
    return PathFinder.find_spec(f"agentlightning.{path}", list(holder.__path__)) is not None or hasattr(
        holder, path.rpartition(".")[2]
    )


def test_a_name_that_works_here_is_pointed_to_where_it_is() -> None:
    assert (why_no_module("agentlightning.types.LLM") or "").endswith("has no LLM: from agentlightning import LLM")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Trainr", "did you mean Trainer? from agentlightning import Trainer"),
        ("LitAgnet", "did you mean LitAgent? from agentlightning import LitAgent"),
        ("loadtasks", "did you mean load_tasks? from agentlightning import load_tasks"),
        ("train", "did you mean Trainer? from agentlightning import Trainer"),
        *((name, f"from agentlightning.{module} import {name}") for name, module in ELSEWHERE.items()),
    ],
)
def test_a_misspelt_name_of_the_package_gets_the_one_that_was_meant_and_the_line(name: str, says: str) -> None:
    with pytest.raises(ImportError, match=f"has no {name}: {re.escape(says)}$"):
        exec(f"from agentlightning import {name}")
    assert not hasattr(agentlightning, name)
    exec(says.rpartition("? ")[2])


def test_the_package_is_run_as_its_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agentlightning", "--version"], capture_output=True, text=True, check=False, timeout=600
    )
    assert (done.returncode, done.stdout.strip()) == (0, agentlightning.__version__)


def test_a_path_that_nobody_looks_for_is_as_unknown_as_ever() -> None:
    with pytest.raises(ModuleNotFoundError, match="No module named 'agentlightning.no_such'"):
        importlib.import_module("agentlightning.no_such")
    with pytest.raises(ImportError, match=r"agentlightning\.types \(.*\) has no no_such: it has Attempt, .*, Triplet$"):
        exec("from agentlightning.types import no_such")
    with pytest.raises(
        ImportError, match=r"has no Triplt: did you mean Triplet\? from agentlightning.types import Triplet$"
    ):
        exec("from agentlightning.types import Triplt")


def test_an_attribute_that_is_absent_says_so_and_does_not_count_as_there() -> None:
    with pytest.raises(AttributeError, match=r"has no APO: "):
        _ = agentlightning.APO
    assert not hasattr(agentlightning, "APO") and getattr(agentlightning, "tracers", None) is None
    assert not hasattr(agentlightning, "__wrapped__") and not hasattr(agentlightning, "_repr_html_")


def test_who_only_looks_for_a_module_gets_no_error() -> None:
    for name in ("agentlightning.contrib", "agentlightning.tracer.triplet", "agentlightning.types.Task"):
        spec = find_spec(name)
        assert spec is not None and spec.origin is None and not spec.submodule_search_locations, name
    assert find_spec("agentlightning.no_such") is None and find_spec("no_such_at_all") is None
    importlib.invalidate_caches()
    assert importlib.metadata.version("agentlightning")
    assert "agentlightning.contrib" not in {
        found.name for found in pkgutil.walk_packages(agentlightning.__path__, "agentlightning.")
    }


def test_who_loads_by_name_gets_the_sentence() -> None:
    with pytest.raises(ImportError, match="has no contrib: nothing is"):
        pickle.loads(b"cagentlightning.contrib\nVERL\n.")
    with pytest.raises(AttributeError, match="has no contrib: nothing is"), mock.patch("agentlightning.contrib.VERL"):
        raise AssertionError("patched what is not there")
    with pytest.raises(ImportError, match="has no contrib: nothing is"):
        pkgutil.resolve_name("agentlightning.contrib:VERL")


def test_a_module_that_is_run_says_its_sentence_and_nothing_else() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agentlightning.contrib", "data.train_batch_size=32"],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 1 and done.stdout == ""
    assert re.fullmatch(r".*: agentlightning \(.*\) has no contrib: nothing is .*\n", done.stderr), done.stderr


def test_pytest_collects_beside_the_finder(tmp_path: Path) -> None:
    """Its import hooks, and its search for packages by name, come by the finder."""
    (tmp_path / "test_one.py").write_text(
        "import pytest\n"
        "def test_one():\n"
        "    import agentlightning\n"
        "    with pytest.raises(ImportError, match='has no contrib'):\n"
        "        import agentlightning.contrib\n"
        "    with pytest.raises(pytest.skip.Exception):\n"
        "        pytest.importorskip('agentlightning.contrib', exc_type=ImportError)\n"
    )
    asked = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--import-mode=importlib",
        "--doctest-modules",
        "test_one.py",
    ]
    done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout
    done = subprocess.run(
        [*asked[:-1], "--pyargs", "agentlightning.contrib"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 4 and "Traceback" not in done.stdout + done.stderr, done.stdout + done.stderr


def test_a_door_loads_nothing_for_who_looks_through_all_modules() -> None:
    program = (
        "import sys, agentlightning.trainer, agentlightning.types\n"
        "for module in list(sys.modules.values()):\n"
        "    hasattr(module, '__file__')\n"
        "print('agentlightning.run.trainer' in sys.modules)\n"
        "from agentlightning.types import *\n"
        "print(Triplet.__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.split() == ["False", "Triplet"]
