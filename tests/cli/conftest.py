"""A recorded run for `agl runs` and `agl show`: written through the real store, with a branching trace, failures and
steps."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentlightning.algorithms import ALGORITHMS
from agentlightning.nouns import (
    AttemptResult,
    Call,
    CallStatus,
    Failure,
    FinishReason,
    Intent,
    Message,
    Mode,
    Node,
    Reason,
    Reward,
    Rollout,
    RunRecord,
    RunStatus,
    SampleRecord,
    SamplingParams,
    Status,
    StepRecord,
)
from agentlightning.records.ledger import Ledger
from agentlightning.settings.sources import describe_run, resolve
from agentlightning.store import Store, open_store
from tests.stored_credit import rows_of
from tests.tiny import tiny_tokenizer

ROOT = Path(__file__).parents[2]
RUN_ID = "calc-20260101-120000-ab12"


@dataclass(frozen=True)
class Ran:
    """What a finished `agl` left: its exit code, stdout and stderr."""

    code: int
    out: str
    err: str


Agl = Callable[..., Ran]


@pytest.fixture
def agl(tmp_path: Path) -> Agl:
    """Runs `agl` as a real process in the test's folder."""

    def run(*arguments: str | Path, stdin: str = "", env: dict[str, str] | None = None) -> Ran:
        command = [sys.executable, "-c", "from agentlightning.cli import main; main()", *map(str, arguments)]
        clean = {key: value for key, value in os.environ.items() if not key.startswith("AGL_")}
        done = subprocess.run(
            command,
            cwd=tmp_path,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
            env={**clean, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **(env or {})},
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    return run


def encode(text: str) -> array[int]:
    return array("i", tiny_tokenizer().encode(text, add_special_tokens=False))


def given(number: int, parent: int | None, text: str, call: int) -> Node:
    return Node(number, parent, sampled=False, token_ids=encode(text), call_index=call)


def sampled(number: int, parent: int, text: str, call: int, logprob: float = -0.5) -> Node:
    ids = encode(text)
    return Node(
        number,
        parent,
        sampled=True,
        token_ids=ids,
        call_index=call,
        logprobs=array("f", [logprob]) * len(ids),
        version=3,
    )


def call(
    attempt: str,
    index: int,
    branch: str,
    prompt: int | None,
    leaves: Sequence[int],
    status: CallStatus = CallStatus.COMPLETE,
) -> Call:
    return Call(
        id=f"chatcmpl-{attempt}-{index}", attempt_id=attempt, index=index, wire="chat_completions", model="gpt",
        policy="main", status=status,
        branch=branch, prompt_node=prompt, samples=tuple(SampleRecord(leaf, FinishReason.STOP, Message("assistant",
        "x")) for leaf in leaves),
        asked={"temperature": 0}, used=SamplingParams(temperature=1.0), total_s=0.5,
        error="prompt too long" if status is CallStatus.REFUSED else None,
    )  # fmt: skip


def write_run(folder: Path, model: Path) -> Path:
    """Fills ``folder/record.db`` with a run of two steps and returns the run's own folder."""
    return asyncio.run(_write_run(folder, model))


async def _write_run(folder: Path, model: Path) -> Path:
    store = open_store(f"sqlite:///{folder / 'record.db'}")
    own = folder / RUN_ID
    own.mkdir()
    description = {
        **describe_run(resolve(ALGORITHMS, flags={"model.path": str(model), "name": "calc"})),
        "mode": "train",
    }
    (own / "config.json").write_text(json.dumps(description))
    await store.create_run(RunRecord(RUN_ID, "calc", str(own), RunStatus.RUNNING, description, 1_767_268_800.0))
    await store.put_resources(RUN_ID, {})
    for step in (1, 2):
        ids = [f"{RUN_ID}-train-{step - 1}-{i}" for i in range(3)]
        await store.enqueue(
            [
                Rollout(id_, RUN_ID, {"question": "3 + 4", "answer": "7"}, Mode.TRAIN, step - 1, i, i, 1)
                for i, id_ in enumerate(ids)
            ]
        )
        await _play(store, ids)
        metrics = {
            "step": step, "reward": 0.25 * step, "tokens_per_s": 400.0, "parity_max": 2e-6,
            "advantages": {ids[0]: 0.707, ids[1]: -0.707},
        }  # fmt: skip
        ledger = Ledger(
            {"succeeded": 2, "failed: agent_error": 1}, {"trained": 1}, {"complete": 3}, {"root": 2, "continued": 1},
            40, 30, {"failed: agent_error": 10},
            1, 2e-6, 1e-12, {"sampling": 2.0, "training": 1.0},
        )  # fmt: skip
        await store.put_step(
            StepRecord(RUN_ID, step, {"main": step}, (step - 1,), metrics, ledger.to_json(), ended_at=1_767_268_900.0),
            await rows_of(store, ids, metrics["advantages"]),
        )
    val = [Rollout(f"{RUN_ID}-val-{i}-0", RUN_ID, {"question": str(i)}, Mode.VAL, i, 0, i, 1) for i in range(4)]
    await store.put_intent(Intent(RUN_ID, 0, tuple(range(4)), {"main": 0}, Mode.VAL))
    await store.enqueue(val)
    for i, (_, attempt) in enumerate(await store.lease(RUN_ID, "r", limit=4, seconds=60)):
        await store.finish(attempt.id, AttemptResult(Status.SUCCEEDED, float(i == 0)))
    await store.end_run(RUN_ID, RunStatus.STOPPED, "interrupted")
    await store.close()
    return own


async def _play(store: Store, ids: list[str]) -> None:
    """The first rollout has a tree with all there is; the second a line; the third fails after a retry."""
    leased = {rollout.id: attempt for rollout, attempt in await store.lease(RUN_ID, "r", limit=3, seconds=60)}
    first, second, third = (leased[id_] for id_ in ids)
    long = "You are a calculator. " * 40
    await store.record(
        call(first.id, 0, "root", 0, [1]),
        [
            given(0, None, f"<|im_start|>system\n{long}<|im_end|>\n<|im_start|>user\n3 + 4?", 0),
            sampled(1, 0, "<calc>3+4</calc><|im_end|>", 0),
        ],
    )
    await store.record(
        call(first.id, 1, "continued", 2, [3, 4]),
        [
            given(2, 1, "\n<|im_start|>user\nResult: 7", 1),
            sampled(3, 2, "It is 7.<|im_end|>", 1),
            sampled(4, 2, "\x1b[31mseven\x07", 1),
        ],
    )
    await store.record(
        call(first.id, 2, "continued", 5, [6]), [given(5, 3, "\nSure?", 2), sampled(6, 5, "Yes.<|im_end|>", 2)]
    )
    await store.record(
        call(first.id, 3, "new", 7, [8], CallStatus.ABANDONED),
        [given(7, None, "A second conversation", 3), sampled(8, 7, "hm", 3)],
    )
    await store.record(call(first.id, 4, "refused", None, [], CallStatus.REFUSED), [])
    await store.add_reward(
        Reward(ids[0], first.id, 0.5, "format", "emit", call_id=f"chatcmpl-{first.id}-0", reason="well formed")
    )
    final = Reward(ids[0], first.id, 1.0, source="return")
    await store.finish(first.id, AttemptResult(Status.SUCCEEDED, 1.0, output="7", rewards=(final,)))
    await store.record(
        call(second.id, 0, "root", 0, [1]), [given(0, None, "3 + 4?", 0), sampled(1, 0, "8<|im_end|>", 0)]
    )
    await store.finish(second.id, AttemptResult(Status.SUCCEEDED, 0.0))
    await store.record(call(third.id, 0, "root", 0, [1]), [given(0, None, "3 + 4?", 0), sampled(1, 0, "?", 0)])
    failure = Failure(
        Reason.AGENT_ERROR, "ValueError: no number in '?'", "Traceback (most recent call last):\n  agent.py:3"
    )
    await store.retry(third.id, Failure(Reason.TIMEOUT, "passed its deadline of 5 s"))
    ((_, again),) = await store.lease(RUN_ID, "r", limit=1, seconds=60)
    await store.finish(again.id, AttemptResult(Status.FAILED, failure=failure))


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing but the tiny tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    tiny_tokenizer().save_pretrained(str(folder))
    return folder


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> Path:
    """An output folder with one recorded run."""
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder, tokenizer_folder)
    return folder
