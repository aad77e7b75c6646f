"""`dev` on agents that keep replies, and on agents that go on after they have returned: real programs, in threads and
in processes."""

from __future__ import annotations

import asyncio
import textwrap
from pathlib import Path
from typing import Any

import pytest

from agentlightning import GRPO, Trainer, emit_reward
from agentlightning.nouns import CallStatus
from agentlightning.store.sql import SqlStore
from agentlightning.views.dev.report import DevReport
from tests.e2e import letters_agent
from tests.e2e.test_training import _open
from tests.tiny import letter_tasks

CALL = """
import json, os, threading, urllib.request
def ask(text, url=None):
    body = json.dumps({"model": "m", "max_tokens": 2, "messages": [{"role": "user", "content": text}]}).encode()
    url = (url or os.environ["OPENAI_BASE_URL"]) + "/chat/completions"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    return json.load(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request))["choices"][0]["message"]["content"]
"""


def trainer(letters: Path, out: Path, **settings: Any) -> Trainer:
    return Trainer(
        algorithm=GRPO(group_size=2, tasks_per_step=2), model=letters, output_dir=out, progress=False, threads=1,
        sampling={"max_tokens": 2}, **{"n_runners": 2, **settings},
    )  # fmt: skip


def written(folder: Path, text: str) -> str:
    (folder / "my_agent.py").write_text(CALL + textwrap.dedent(text))
    return f"{folder / 'my_agent.py'}:agent"


def titles(report: DevReport) -> list[str]:
    return [finding.title for finding in report.findings]


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_an_agent_that_keeps_replies_is_found_by_its_first_task_once_more(
    letters: Path, tmp_path: Path, isolation: str
) -> None:
    agent = written(
        tmp_path,
        """
        import functools, pathlib
        def agent(task, llm):
            kept = pathlib.Path(__file__).with_name(task["letter"])
            if not kept.exists():
                kept.write_text(ask(task["letter"], llm.endpoint) or "-")
            return once(kept.read_text())
        @functools.lru_cache
        def once(text):
            return float(len(text))
        """,
    )
    report = trainer(letters, tmp_path / "runs", runner={"isolation": isolation}).dev(agent, letter_tasks(4), 2)
    assert [line.repeats is None for line in report.attempts] == [True, True, False]
    (finding,) = [finding for finding in report.findings if finding.level == "blocks"]
    assert finding.title == "The same task makes no second call"
    assert (
        finding.rollouts == (report.attempts[-1].rollout_id,)
        and "my_agent.py:" in finding.cause
        and "@functools.lru_cache" in finding.cause
    )


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_calls_after_the_return_are_found_whichever_way_they_are_left(
    letters: Path, tmp_path: Path, isolation: str
) -> None:
    agent = written(
        tmp_path,
        """
        import asyncio, time
        def later(url):
            time.sleep(0.3)
            ask("late", url)
        async def task_later(url):
            await asyncio.sleep(0.3)
            await asyncio.to_thread(ask, "late", url)
        async def agent(task, llm):
            reply = await asyncio.to_thread(ask, task["letter"], llm.endpoint)
            if task["letter"] == FIRST:
                threading.Thread(target=later, args=(llm.endpoint,), daemon=True).start()
            else:
                agent.kept = asyncio.create_task(task_later(llm.endpoint))
            return float(len(reply))
        """,
    )
    first = letter_tasks(2)[0]["letter"]
    (tmp_path / "my_agent.py").write_text(f"FIRST = {first!r}\n" + (tmp_path / "my_agent.py").read_text())
    report = trainer(letters, tmp_path / "runs", runner={"isolation": isolation}).dev(agent, letter_tasks(2), 2)
    (finding,) = [finding for finding in report.findings if finding.title == "Calls came too late"]
    assert finding.level == "warns" and len(finding.rollouts) == 3, (
        "the thread's, the task's, and those of the first task once more"
    )
    assert all(any(call.status == "late" for call in line.calls) for line in report.attempts)


async def late_calls(out: Path) -> int:
    store = _open(out)
    try:
        (run,) = await store.runs()
        attempts = [attempt for rollout in await store.rollouts(run.id) for attempt in await store.attempts(rollout.id)]
        calls = [call for attempt in attempts for call in await store.calls(attempt.id)]
        return sum(call.status is CallStatus.LATE for call in calls)
    finally:
        await store.close()


def test_training_counts_late_calls_cut_samples_and_unused_rewards_in_its_ledger(letters: Path, tmp_path: Path) -> None:
    import threading

    import openai

    refused: list[bool] = []
    heard = threading.Event()

    def agent(task: dict[str, str], llm: Any) -> float:
        reward = letters_agent.agent(task, llm)
        emit_reward(0.5)
        emit_reward(0.25, name="format")
        if task == letter_tasks(1)[0]:
            threading.Thread(target=late, args=(llm,)).start()
        else:
            assert heard.wait(60), "the step goes on until a late call has been answered"
        return reward

    def late(llm: Any) -> None:
        while not heard.is_set():
            try:
                letters_agent.ask(llm, "late")
            except openai.APIStatusError as error:  # the attempt's end also withdraws a call that came in time
                if "came after it" in str(error):
                    refused.append(error.status_code == 410)
                    heard.set()

    result = trainer(letters, tmp_path, steps=2, n_runners=4).fit(agent, letter_tasks(2))
    assert refused and all(refused)
    assert result.ledger.unused == {"beside_return": 8, "other_name": 8}
    assert result.ledger.late >= 1 and "late" not in result.ledger.calls
    assert result.ledger.late == asyncio.run(late_calls(tmp_path))
    assert 0 < result.ledger.cut <= sum(result.ledger.calls.values())


def test_an_attempt_whose_report_comes_after_its_rollout_is_final_is_in_the_report(
    letters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine may go on with whoever waits for the rollout before the desk says what came of its attempt."""
    finish = SqlStore.finish

    async def slowly(*given: Any, **named: Any) -> Any:
        ended = await finish(*given, **named)
        await asyncio.sleep(0.3)
        return ended

    monkeypatch.setattr(SqlStore, "finish", slowly)
    report = trainer(letters, tmp_path).dev(letters_agent.agent, letter_tasks(2), 1)
    assert [attempt.repeats is None for attempt in report.attempts] == [True, False]
