"""`trainer.dev` and `evaluate`, `agl dev` and `agl eval`, against an endpoint and with nothing to train: a real second
server, real processes, and no torch on this side."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentlightning import GRPO, LLM, Trainer
from agentlightning.errors import ConfigError
from tests.cli.test_serving import Served
from tests.e2e.letters_agent import graded
from tests.tiny import letter_tasks
from tests.upstream import KEY, OtherEndpoint

Surroundings = Callable[..., dict[str, str]]

PROGRAM = """
import asyncio, json, os, sys
import openai
from agentlightning import GRPO, LLM, LitAgent, NamedResources, Trainer, rollout

def ask(llm, text):
    with openai.OpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as client:
        messages = [{"role": "user", "content": text}]
        return client.chat.completions.create(model=llm.model, messages=messages, **llm.sampling_parameters)

@rollout
def function(task, llm):
    return 0.25 if ask(llm, task["question"]).choices else 0.0

@rollout
async def coroutine(task, llm):
    reply = await asyncio.to_thread(ask, llm, task["question"])
    return 0.5 if reply.choices else 0.0

class Named(LitAgent[dict]):
    def rollout(self, task, resources, rollout):
        llm = resources["main_llm"]
        llm.model = "a-name-that-is-written-into-the-program"
        assert rollout.mode in ("dev", "val") and llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        return 0.75 if ask(llm, task["question"]).choices else 0.0

if __name__ == "__main__":
    llm = LLM(endpoint=os.environ["THEIRS"], model="tiny", api_key=os.environ["THEIR_KEY"],
              sampling_parameters={"temperature": 0.5, "max_tokens": 3})
    trainer = Trainer(initial_resources={"main_llm": llm}, output_dir=sys.argv[1], n_workers=1)
    tasks = [{"question": f"say {i}"} for i in range(4)]
    trainer.dev(function, tasks)
    trainer.dev(coroutine, train_dataset=tasks)
    report = trainer.dev(agent=Named(), tasks=tasks, n=2)
    told = {"rewards": [a.reward for a in report.attempts], "calls": [len(a.calls) for a in report.attempts]}
    told["evaluate"] = trainer.evaluate(function, tasks).mean
    other = Trainer(algorithm=GRPO(), model="no/such-model", output_dir=sys.argv[1], progress=False,
                    resources=NamedResources({"main_llm": llm}))
    told["beside a model"] = [a.reward for a in other.dev(function, tasks, 1).attempts]
    told["loaded"] = sorted({"torch", "transformers"} & set(sys.modules))
    print(json.dumps(told))
"""


def test_dev_and_evaluate_run_against_an_endpoint_without_a_model_an_engine_or_torch(
    served: Served, surroundings: Surroundings, tmp_path: Path
) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    program = [sys.executable, str(file), str(tmp_path / "out")]
    done = subprocess.run(program, env=surroundings(), capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    *printed, last = done.stdout.splitlines()
    assert json.loads(last) == {
        "rewards": [0.75, 0.75], "calls": [1, 1], "evaluate": 0.25, "beside a model": [0.25], "loaded": [],
    }  # fmt: skip
    text = "\n".join(printed)
    assert text.count("reward 0.25 (return)") == 3 and text.count("reward 0.5 (return)") == 3, text
    assert text.count("call 0  chat main_llm") == 8, "each rollout's calls are printed"
    assert "main_llm (tiny): 3 calls in 3 rollouts" in text
    assert "Nothing was found to be wrong, in 3 rollouts without a model of the run's own." in text
    assert served.variables["OPENAI_API_KEY"] not in text and "kept from being trained" not in text


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_agl_dev_and_agl_eval_run_against_a_configured_endpoint(
    served: Served, surroundings: Surroundings, tmp_path: Path, isolation: str
) -> None:
    (tmp_path / "agents.py").write_text(PROGRAM)
    (tmp_path / "tasks.jsonl").write_text('{"question": "one"}\n{"question": "two"}\n')
    settings = f"""
        output_dir = "out"
        [resources.main_llm]
        endpoint = "{served.variables["OPENAI_BASE_URL"]}"
        model = "tiny"
        api_key_env = "THEIR_KEY"
        sampling_parameters = {{max_tokens = 2}}
    """
    (tmp_path / "run.toml").write_text(textwrap.dedent(settings))

    def agl(command: str) -> tuple[Any, str]:
        program = [sys.executable, "-X", "importtime", "-m", "agentlightning", command, "agents.py:function"]
        program += ["--tasks", "tasks.jsonl", "--config", "run.toml", "--isolation", isolation, "--json"]
        env = surroundings(THEIRS="elsewhere")
        done = subprocess.run(program, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=200)
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout), done.stderr

    report, imported = agl("dev")
    assert [attempt["reward"] for attempt in report["attempts"]] == [0.25] * 3 and report["trains"] is False
    assert {call["sampled_tokens"] for attempt in report["attempts"] for call in attempt["calls"]} == {2}
    assert "| torch" not in imported and "agentlightning.gateway.server" in imported
    evaluation, imported = agl("eval")
    assert evaluation["mean"] == 0.25 and "| torch" not in imported
    written = [file.read_bytes() for file in (tmp_path / "out").rglob("*") if file.is_file()]
    assert written
    for secret in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        assert not any(served.variables[secret].encode() in data for data in written), secret


def test_a_key_that_the_environment_lacks_is_one_line() -> None:
    given = {"main_llm": {"endpoint": "http://x/v1", "model": "m", "api_key_env": "NO_SUCH_KEY"}}
    with pytest.raises(ConfigError, match="^resources.main_llm.api_key_env: the environment has no NO_SUCH_KEY: set"):
        Trainer(config={"resources": given})


def test_an_endpoint_that_fails_and_an_agent_without_a_reward_are_told_as_such(tmp_path: Path) -> None:
    other = OtherEndpoint()
    resources = {"main_llm": LLM(endpoint=other.url, model="m", api_key=KEY)}
    trainer = Trainer(resources=resources, output_dir=tmp_path, progress=False)

    def silent(task: Any, llm: Any) -> None:
        graded(task, llm)

    (finding,) = trainer.dev(silent, letter_tasks(2), 2).findings
    assert (finding.level, finding.title) == ("blocks", "There is no reward")
    other.close()
    (finding,) = trainer.dev(graded, letter_tasks(2), 2).findings
    assert finding.title == "An external model failed the agent" and "could not be reached" in finding.cause


def test_in_training_the_runs_own_model_takes_the_place_of_the_endpoint_and_a_line_says_so(
    letters: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other = OtherEndpoint()
    trainer = Trainer(
        algorithm=GRPO(group_size=4, tasks_per_step=1), model=letters, output_dir=tmp_path, steps=1, threads=1,
        learner={"lr": 5e-3}, sampling={"max_tokens": 1}, n_runners=4,
        initial_resources={"main_llm": LLM(endpoint=other.url, model="m", api_key=KEY)},
    )  # fmt: skip
    result = trainer.fit(graded, letter_tasks(2))
    other.close()
    assert result.ledger.check().sampled == 4 and result.ledger.external == {} and not other.asked
    assert "resource 'main_llm' is this run's own model: its endpoint is for dev" in "".join(capfd.readouterr())
