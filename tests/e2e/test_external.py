"""Whole runs of an agent that also calls somebody else's model: the policy is trained, the other is recorded, and its
key stays here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from typer.testing import CliRunner

from agentlightning import GRPO, LLM, Trainer
from agentlightning.cli.app import app
from agentlightning.errors import ConfigError, RunFailed
from agentlightning.nouns import CallStatus, Reason
from agentlightning.records.ledger import Ledger
from tests.e2e import judged_agent
from tests.e2e.test_training import _open
from tests.tiny import letter_tasks
from tests.upstream import KEY, OtherEndpoint, event, stream

FILE = f"{judged_agent.__file__}:judged"


@pytest.fixture
def other() -> Iterator[OtherEndpoint]:
    endpoint = OtherEndpoint(say="1.0")
    yield endpoint
    endpoint.close()


def trainer(
    letters: Path, out: Path, url: str, *, steps: int = 1, group: int = 4, resources: Any = None, **settings: Any
) -> Trainer:
    return Trainer(
        model=letters,
        output_dir=out,
        steps=steps,
        progress=False,
        algorithm=GRPO(group_size=group, tasks_per_step=2),
        learner={"lr": 5e-3},
        sampling={"max_tokens": 1},
        threads=1,
        resources={"judge": LLM(endpoint=url, model="true-name", api_key=KEY)} if resources is None else resources,
        **{"n_runners": 4, **settings},
    )


async def _record(out: Path) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    store = _open(out)
    try:
        run = (await store.runs())[0]
        rollouts = await store.rollouts(run.id)
        attempts = [a for r in rollouts for a in await store.attempts(r.id)]
        calls = [c for a in attempts for c in await store.calls(a.id)]
        nodes = [n for a in attempts for n in await store.nodes(a.id)]
        return rollouts, calls, nodes, await store.steps(run.id)
    finally:
        await store.close()


def test_the_policy_is_trained_the_judge_is_not_and_its_key_is_nowhere(
    letters: Path, tmp_path: Path, other: OtherEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, out = tmp_path / "seen.json", tmp_path / "out"
    monkeypatch.setenv("JUDGE_KEY", KEY)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    tasks = [{**task, "seen": str(seen)} for task in letter_tasks(2)]
    result = trainer(letters, out, other.url, group=8).fit(FILE, tasks)

    ledger = result.ledger.check()
    assert ledger.trained > 0 and ledger.calls == {"complete": 16}
    assert ledger.external == {"judge": {"calls": 16, "failed": 0, "prompt_tokens": 16 * 12, "reply_tokens": 16 * 3}}
    _, calls, nodes, steps = asyncio.run(_record(out))
    assert Ledger.from_json(steps[0].ledger) == ledger
    assert (
        ledger.sampled
        == sum(len(node.token_ids) for node in nodes if node.sampled)
        == sum(call.sampled_tokens for call in calls)
    )
    external = [call for call in calls if call.external is not None]
    assert len(external) == 16 == len(other.asked) and {asked.json["model"] for asked in other.asked} == {"true-name"}
    assert json.loads(external[0].external.request)["model"] == "judge" and "[DONE]" in external[0].external.reply

    told = json.loads(seen.read_text())
    assert told["at_import"] == told["environment"]["JUDGE_KEY"] == "kept-by-agentlightning"
    assert told["judge"]["model"] == "judge" and told["judge"]["endpoint"] == told["environment"]["OPENAI_BASE_URL"]
    assert told["judge"]["api_key"] == told["environment"]["OPENAI_API_KEY"]
    rollout = next(call.attempt_id for call in external).rpartition(".")[0]
    shown = [
        CliRunner().invoke(app, ["show", "--output-dir", str(out), result.run_id, *more])
        for more in ([], [rollout], [rollout, "--json"], [rollout, "--full"])
    ]
    assert [each.exit_code for each in shown] == [0] * 4, [each.output for each in shown]
    assert "judge: 16 calls, 192 -> 48 tokens" in " ".join(shown[0].output.split())
    assert "external judge (true-name)" in shown[1].output and "to external models" in shown[1].output
    everything = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()] + [
        each.output.encode() for each in shown
    ]
    assert b"true-name" in b"".join(everything)
    for secret in (KEY, other.url, f"127.0.0.1:{other.port}"):
        assert not any(secret.encode() in data for data in everything), secret


def test_a_resumed_run_is_given_the_endpoint_again_and_calls_it_for_what_is_left(
    letters: Path, tmp_path: Path, other: OtherEndpoint
) -> None:
    first = trainer(letters, tmp_path, other.url).fit(judged_agent.judged, letter_tasks(2))
    with pytest.raises(ConfigError, match="had the external model 'judge': pass it again"):
        trainer(letters, tmp_path, other.url, steps=2, resources={}).fit(
            judged_agent.judged, letter_tasks(2), resume=first.run_id
        )
    moved = OtherEndpoint(say="1.0")
    second = trainer(letters, tmp_path, moved.url, steps=2).fit(
        judged_agent.judged, letter_tasks(2), resume=first.run_id
    )
    moved.close()
    assert second.run_id == first.run_id and len(second.history) == 2
    assert (len(other.asked), len(moved.asked)) == (8, 8) and second.ledger.check().external["judge"]["calls"] == 16


def test_a_dead_judge_is_no_fault_of_the_policys(letters: Path, tmp_path: Path, other: OtherEndpoint) -> None:
    """Invariant 4: not even where failures of the agent are scored."""
    other.close()
    runner = {"n_runners": 4, "failure_reward": {"agent_error": -1.0}}
    with pytest.raises(
        RunFailed,
        match=r"8 of 8: external: external model 'judge' failed: it could not be reached: Connection refused; and then",
    ):
        trainer(letters, tmp_path, other.url, runner=runner, n_runners=None).fit(judged_agent.judged, letter_tasks(2))
    rollouts, calls, _, _ = asyncio.run(_record(tmp_path))
    assert {(rollout.failure.reason, rollout.reward) for rollout in rollouts} == {(Reason.EXTERNAL, None)}
    assert sum(call.external is not None for call in calls) == 8


@pytest.mark.parametrize(
    ("events", "said"),
    [
        (
            [{"choices": []}, {"error": {"message": "Overloaded", "code": 529}}],
            "failed in its reply: Overloaded; and then: APIError",
        ),
        ([{"choices": []}], "failed: its stream ended without its last event .*; and then: APIError"),
        (None, r"had said nothing for 1\.\d s when its client gave up; and then: APITimeoutError"),
    ],
)
def test_a_judge_that_fails_in_its_stream_or_stays_silent_is_no_fault_of_the_policys(
    letters: Path, tmp_path: Path, other: OtherEndpoint, events: list[Any] | None, said: str
) -> None:
    async def answers(request: web.Request, given: Any) -> web.StreamResponse:
        if events is None:
            await asyncio.sleep(60)
        return await stream(request, [event(each).encode() for each in events or []])

    other.handle = answers
    runner = {"n_runners": 4, "failure_reward": {"agent_error": -1.0}}
    tasks = [{**task, "patience": "1.2"} for task in letter_tasks(1)]
    with pytest.raises(RunFailed, match=rf"[4-8] of 8: external: external model 'judge' {said}"):
        trainer(letters, tmp_path, other.url, runner=runner, n_runners=None).fit(judged_agent.judged, tasks)
    rollouts, calls, _, _ = asyncio.run(_record(tmp_path))
    assert {(rollout.failure.reason, rollout.reward) for rollout in rollouts} == {(Reason.EXTERNAL, None)}
    status = CallStatus.ABANDONED if events is None else CallStatus.REFUSED
    assert {call.status for call in calls if call.external is not None} == {status}


def test_dev_says_which_external_models_there_are_and_how_often_each_was_called(
    letters: Path, tmp_path: Path, other: OtherEndpoint
) -> None:
    resources = {
        "judge": LLM(endpoint=other.url, model="true-name", api_key=KEY),
        "spare": LLM(endpoint="https://api.other/v1", model="s"),
    }
    text = str(
        trainer(letters, tmp_path, other.url, resources=resources).dev(judged_agent.judged, letter_tasks(2), n=2)
    )
    assert "2 external models, recorded as given and never trained:" in text
    assert "judge (true-name): 3 calls in 3 rollouts, 36 -> 9 tokens" in text, "the first task is run once more"
    assert "spare (s): not called" in text
    assert "agents make calls" not in text, "the judge's prompt is no agent that could be trained"
    assert KEY not in text and other.url not in text
    other.close()
    text = str(trainer(letters, tmp_path, other.url).dev(judged_agent.judged, letter_tasks(2), n=2))
    assert "An external model failed the agent" in text and "2 failed" in text


def test_a_name_that_means_the_policy_is_refused_before_anything_starts(letters: Path, tmp_path: Path) -> None:
    for resources, said in (
        ({"main": LLM(endpoint="http://x/v1", model="m")}, "resource 'main' is an external model"),
        ({"judge": LLM(endpoint="x", model="m")}, "resource 'judge'.*is no URL"),
        ({"judge": LLM(endpoint="http://x/v1")}, "resource 'judge'.*names no model"),
    ):
        with pytest.raises(ConfigError, match=said):
            trainer(letters, tmp_path, "", resources=resources).fit(judged_agent.judged, letter_tasks(2))
    assert not list(tmp_path.iterdir())
