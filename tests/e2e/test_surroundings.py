"""Whole runs where the machine is not as in a test: a folder that is gone, a proxy, a file that names an address."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from agentlightning import GRPO, Trainer
from agentlightning.errors import ConfigError, RunFailed
from agentlightning.settings.fields import RunConfig
from tests.runners import misbehaving


@pytest.fixture(autouse=True)
def _folder() -> Iterator[None]:
    folder = Path.cwd()
    yield
    os.chdir(folder)


def trainer(model: str | Path, **settings: Any) -> Trainer:
    algorithm = GRPO(group_size=2, tasks_per_step=2)
    defaults: dict[str, Any] = {
        "steps": 1,
        "n_runners": 2,
        "threads": 1,
        "progress": False,
        "sampling": {"max_tokens": 2},
    }
    return Trainer(algorithm=algorithm, model=model, **{**defaults, **settings})


def changes_folder(task: Any, llm: Any) -> float:
    misbehaving.changes_folder(task, llm)
    return random.random()


@pytest.mark.parametrize("store", [{}, {"url": "sqlite:///other/record.db"}])
def test_a_run_keeps_to_the_places_it_was_given_whatever_folder_its_agents_change_into(
    letters: Path, tmp_path: Path, store: Any
):
    os.chdir(tmp_path)
    Path("model").symlink_to(letters)
    made = trainer("model", output_dir="runs", store=store)
    result = made.fit(changes_folder, ["a", "b"])
    assert result.ledger.rollouts == {"succeeded": 4}
    with pytest.raises(FileNotFoundError):
        Path.cwd()
    assert result.folder.parent == tmp_path / "runs" and result.folder.is_absolute()
    assert (tmp_path / ("other" if store else "runs") / "record.db").is_file()
    trace = made.last_trace()
    assert trace.decode is not None, "the model's folder is known by its whole path"
    assert {file.name for file in result.folder.iterdir()} >= {
        "config.json",
        "metrics.jsonl",
        "result.json",
        "curve.png",
    }


def test_a_working_folder_that_is_gone_is_refused_with_what_to_do(tmp_path: Path):
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    with pytest.raises(ConfigError, match="the working folder no longer exists: change into one that does"):
        RunConfig().anchored()
    config = RunConfig.model_validate(
        {"output_dir": "/x/runs", "model": {"path": "/x/model"}, "store": {"url": "sqlite:////x/r.db"}}
    )
    assert config.anchored() == config


def test_a_name_on_a_hub_is_no_path():
    assert RunConfig.model_validate({"model": {"path": "org/name"}}).anchored().model.path == "org/name"


CLIENT: list[OpenAI] = []


def asks_by_one_client(task: Any, llm: Any) -> float:
    """Made before the run began, as at the top of a module."""
    client = CLIENT[0].with_options(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0)
    client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": str(task)}])
    return 1.0


@pytest.mark.parametrize("val", [None, ["a"]], ids=["training", "validation"])
def test_a_fit_in_which_no_call_came_names_the_cause_that_dev_finds(letters: Path, tmp_path: Path, monkeypatch, val):
    for name in ("NO_PROXY", "no_proxy", "all_proxy", "ALL_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    CLIENT[:] = [OpenAI(api_key="k")]
    with pytest.raises(
        RunFailed,
        match=r"no call reached the endpoint, which may be for this: HTTP_PROXY is set, and a client that was made "
        r"before the run",
    ):
        trainer(letters, output_dir=tmp_path).fit(asks_by_one_client, ["a", "b"], val_dataset=val)
    report = trainer(letters, output_dir=tmp_path).dev(asks_by_one_client, ["a"], n=1)
    assert any("HTTP_PROXY is set" in finding.cause for finding in report.findings)


def fails_before_its_call(task: Any, llm: Any) -> float:
    raise LookupError("no such question")


def test_a_proxy_is_no_more_than_a_likely_cause_where_the_agent_failed_of_itself(
    letters: Path, tmp_path: Path, monkeypatch
):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with pytest.raises(
        RunFailed,
        match=r"agent_error: LookupError: no such question \(.*\); no call reached the endpoint, which may be for "
        r"this: ",
    ):
        trainer(letters, output_dir=tmp_path).fit(fails_before_its_call, ["a", "b"])


@pytest.mark.parametrize(
    ("file", "line", "said"),
    [
        (
            ".env",
            "export LLM_URL='http://127.0.0.1:9/v1/'  # ours\n",
            r"which stands in .env:1 \(LLM_URL\); take it out there",
        ),
        (None, "", "which stands in the variable LLM_URL; take it out there"),
    ],
)
def test_a_base_url_from_outside_the_module_is_traced_to_where_it_stands(
    letters, tmp_path, monkeypatch, file, line, said
):
    monkeypatch.setenv("LLM_URL", "http://127.0.0.1:9/v1")
    if file:
        (tmp_path / file).write_text(line)
    agent = tmp_path / "from_settings.py"
    agent.write_text(
        "import os, openai\n"
        "client = openai.OpenAI(base_url=os.environ['LLM_URL'], max_retries=0)\n"
        "def agent(task):\n"
        "    client.chat.completions.create(model='m', messages=[{'role': 'user', 'content': 'a'}])\n"
        "    return 1.0\n"
    )
    with pytest.raises(RunFailed, match=said):
        trainer(letters, output_dir=tmp_path / "runs").fit(f"{agent}:agent", ["a"])
