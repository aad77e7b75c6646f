"""What programs of the first version of this package's name call, and how a Trainer of theirs is laid out."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import agentlightning as agl
from agentlightning import LLM, DevTaskLoader, InMemoryLightningStore, NamedResources, Trainer, lightning_cli
from agentlightning.errors import ConfigError
from tests.imports import ROOT
from tests.upstream import KEY, OtherEndpoint

AGENT = """
import os, sys
from openai import OpenAI
from agentlightning import LitAgent, lightning_cli, DevTaskLoader, LLM, Trainer

class Asks(LitAgent):
    def __init__(self, bonus: float = 0.0, words: list[str] | None = None, trained_agents: str | None = None) -> None:
        super().__init__(trained_agents=trained_agents)
        self.bonus, self.words = bonus, words

    def training_rollout(self, task, rollout_id, resources):
        llm = resources["main_llm"]
        client = OpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0)
        reply = client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": task["q"]}])
        return float(reply.choices[0].message.content) + self.bonus

    async def training_rollout_async(self, task, rollout_id, resources):
        assert isinstance(rollout_id, str)
        return self.training_rollout(task, rollout_id, resources)

def where(task, llm):
    return float(os.getpid())

def loader():
    llm = LLM(endpoint=os.environ["THEIRS"], model="m", api_key=os.environ["THEIR_KEY"])
    return DevTaskLoader(tasks=[{"q": "a"}, {"q": "b"}, {"q": "c"}], resources={"main_llm": llm})

if __name__ == "__main__":
    agent, trainer = lightning_cli(Asks, Trainer)
    print(agent.words, trainer.config.runner.n_runners)
    trainer.fit(agent, "http://127.0.0.1:9", loader())
"""


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtherEndpoint]:
    endpoint = OtherEndpoint(say="0.5")
    monkeypatch.setenv("THEIRS", endpoint.url)
    monkeypatch.setenv("THEIR_KEY", KEY)
    yield endpoint
    endpoint.close()


@pytest.fixture
def agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "first_agents.py").write_text(AGENT)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield __import__("first_agents")
    del sys.modules["first_agents"]


def given(other: OtherEndpoint) -> dict[str, Any]:
    llm = LLM(endpoint=other.url, model="m", api_key=KEY)
    return {"tasks": [{"q": "a"}, {"q": "b"}, {"q": "c"}], "resources": NamedResources({"main_llm": llm})}


SERVER = "http://127.0.0.1:9"
FORMS: dict[str, Callable[[DevTaskLoader], tuple[list[Any], dict[str, Any]]]] = {
    "address and loader": lambda loader: ([SERVER, loader], {}),
    "address and dev_data": lambda loader: ([SERVER], {"dev_data": loader}),
    "endpoint": lambda loader: ([], {"endpoint": SERVER, "dev_data": loader}),
    "backend": lambda loader: ([], {"backend": SERVER, "dev_data": loader}),
    "loader alone": lambda loader: ([loader], {}),
    "dev_data alone": lambda loader: ([], {"dev_data": loader}),
}


@pytest.mark.parametrize("form", FORMS)
def test_dev_true_tries_the_agent_on_the_loaders_tasks_and_asks_no_server(
    form: str, other: OtherEndpoint, agents: Any, tmp_path: Path
) -> None:
    trainer = Trainer(n_workers=2, dev=True, daemon=True, progress=False, output_dir=tmp_path / "out")
    args, kwargs = FORMS[form](DevTaskLoader(**given(other)))
    report: Any = trainer.fit(agents.Asks(), *args, **kwargs)
    assert [attempt.reward for attempt in report.attempts] == [0.5] * 3 and len(other.asked) == 3
    assert trainer.resources == {}, "what a loader brings is its own"


def test_max_tasks_bounds_what_dev_true_tries_and_its_tasks_may_be_plain(
    other: OtherEndpoint, agents: Any, tmp_path: Path
) -> None:
    data = given(other)
    trainer = Trainer(
        dev=True, max_tasks=2, progress=False, output_dir=tmp_path / "out", initial_resources=data["resources"]
    )
    report: Any = trainer.fit(agents.Asks(), data["tasks"])
    assert len(report.attempts) == 2 == len(other.asked)
    report = trainer.fit(agents.Asks(), train_dataset=data["tasks"][:1])
    assert len(report.attempts) == 1


def test_what_would_join_a_server_or_lacks_its_tasks_is_one_line(agents: Any, tmp_path: Path) -> None:
    agent, loader = agents.Asks(), DevTaskLoader([{"q": "a"}])
    for call, said in (
        (lambda: Trainer(n_workers=2).fit(agent, "http://127.0.0.1:9999"), "127.0.0.1:9999'.: agents, model and record"),
        (lambda: Trainer().fit(agent, endpoint="http://127.0.0.1:9999"), "127.0.0.1:9999'.: agents, model and record"),
        (lambda: Trainer().fit(agent, backend="http://h:1"), "http://h:1'.: agents, model and record"),
        (lambda: Trainer().fit(agent, "http://h:1", loader), r"dev_data is for trying an agent out: Trainer\(dev=True\)"),
        (lambda: Trainer(dev=True).fit(agent, "http://h:1"), r"Trainer\(dev=True\).fit needs tasks: fit\(agent, dev_data="),
        (lambda: DevTaskLoader(cast(Any, 5)), "tasks"),
        (lambda: DevTaskLoader([1], resources={"x": object()}), "resource"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=said) as refused:
            call()
        assert "\n" not in str(refused.value)


def test_lightning_cli_makes_what_a_command_line_says(other: OtherEndpoint, agents: Any, tmp_path: Path) -> None:
    program = [sys.executable, "first_agents.py", "--asks.bonus", "0.25", "--asks.words", '["x", "y"]']
    program += ["--trainer.n-workers", "3", "--trainer.dev", "true", "--trainer.max-tasks", "2"]
    program += ["--trainer.output-dir", "cli"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(program, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("['x', 'y'] 3\n") and done.stdout.count("reward 0.75 (return)") == 2
    assert (tmp_path / "cli").is_dir()
    for wrong, said in (("--trainer.n-workers=many", "n-workers: 'many'"), ("--trainer.no-such=1", "unrecognized")):
        done = subprocess.run(
            [*program[:2], wrong], cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=100
        )
        assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr


def test_lightning_cli_hands_back_one_object_for_one_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["program", "--trainer.max-rollouts", "5", "--trainer.model", "folder"])
    trainer = lightning_cli(Trainer)
    assert isinstance(trainer, Trainer) and trainer.max_tasks == 5 and trainer.config.model.path == "folder"
    with pytest.raises(ConfigError, match=r"lightning_cli\(\) needs the classes to make"):
        lightning_cli()


def test_a_store_of_another_kind_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"Trainer\(store=object\): expected InMemoryLightningStore\(\), or settings"):
        Trainer(store=object())


def test_runs_are_recorded_in_the_store_that_a_trainer_was_given(
    agents: Any, other: OtherEndpoint, tmp_path: Path
) -> None:
    store = InMemoryLightningStore()
    trainer = Trainer(
        store=store, progress=False, output_dir=tmp_path / "out", initial_resources=given(other)["resources"]
    )
    trainer.dev(agents.Asks(), [{"q": "a"}, {"q": "b"}], n=2)

    async def asked() -> list[Any]:
        rollouts = await store.query_rollouts()
        return [agl.find_final_reward(await store.query_spans(each.rollout_id)) for each in rollouts]

    assert trainer.store is store and asyncio.run(asked()) == [0.5, 0.5]
    assert trainer.last_trace().trace.calls and not (tmp_path / "out" / "record.db").exists()


@pytest.mark.parametrize(
    "line",
    [
        "from agentlightning import DevTaskLoader, lightning_cli, Trainer",
        "from agentlightning.client import DevTaskLoader",
        "from agentlightning.config import lightning_cli",
        "from agentlightning.trainer import Trainer",
        "from agentlightning.trainer.legacy import Trainer",
        "from agentlightning.trainer.trainer import Trainer",
    ],
)
def test_the_names_are_where_programs_look_for_them(line: str) -> None:
    scope: dict[str, Any] = {}
    exec(line, scope)
    assert all(
        scope[name] is getattr(agl, name) for name in ("DevTaskLoader", "lightning_cli", "Trainer") if name in scope
    )
