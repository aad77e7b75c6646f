"""Records to rows and back: pure functions between nouns.py and the tables' columns. No SQL and no connection in here.

Records become rows on the caller's thread, before a write is queued, so that a value that cannot be stored fails where
it was handed in, and so that changing it afterwards changes nothing.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import orjson
from sqlalchemy import RowMapping

from agentlightning.errors import StoreError
from agentlightning.nouns import (
    MAX_REWARD,
    Attempt,
    AttemptResult,
    Call,
    CallStatus,
    CreditRow,
    External,
    Failure,
    FinishReason,
    Intent,
    Json,
    KeptIds,
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
    SpanRecord,
    SpanStatus,
    Status,
    StepRecord,
    ToolCall,
)

Number = TypeVar("Number", int, float)

Params = dict[str, Any]
"""Column name to bound value."""


# --------------------------------------------------------------------------- values


def dump(value: Json, what: str) -> str:
    """JSON text. ``what`` names the value in the StoreError for one that JSON cannot hold. NaN and infinities become
    null."""
    try:
        return orjson.dumps(value).decode()
    except TypeError as error:
        raise StoreError(f"{what} cannot be stored as JSON: {error}") from error


def printable(text: str | None) -> str | None:
    """The text with halves of surrogate pairs escaped (a process' output may hold them): a report is never lost for its
    encoding."""
    return None if text is None else text.encode("utf-8", "backslashreplace").decode()


def _blob(values: array[int] | array[float] | None, typecode: str) -> bytes | None:
    """``values`` as little-endian int32 ("i") or float32 ("f")."""
    if values is None:
        return None
    if values.typecode != typecode or sys.byteorder == "big":
        values = _native(array(typecode, values))
    return values.tobytes()


def _ints(blob: bytes | None) -> array[int]:
    return _native(array("i", blob or b""))


def _floats(blob: bytes | None) -> array[float] | None:
    return None if blob is None else _native(array("f", blob))


def _native(values: array[Number]) -> array[Number]:
    """Little-endian as read, in this machine's order."""
    if sys.byteorder == "big":
        values.byteswap()
    return values


def checked_reward(value: float, what: str) -> float:
    """The value as a float. Raises StoreError when it is not a finite number, or beyond ``MAX_REWARD``."""
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise StoreError(f"{what} is {value!r}, not a number") from error
    if not math.isfinite(number):
        raise StoreError(f"{what} is {number}, not a finite number")
    if abs(number) > MAX_REWARD:
        raise StoreError(f"{what} is {number:g}, beyond the largest reward, {MAX_REWARD:g}")
    return number


def failure_params(failure: Failure | None) -> Params:
    """The three failure columns of a rollout or an attempt."""
    if failure is None:
        return {"failure_reason": None, "failure_message": None, "failure_traceback": None}
    message, traceback = printable(failure.message), printable(failure.traceback)
    return {"failure_reason": failure.reason.value, "failure_message": message, "failure_traceback": traceback}


def failed_params(failure: Failure) -> Params:
    """The columns of a rollout or an attempt that failed."""
    return {"status": Status.FAILED.value, **failure_params(failure)}


def _failure(row: RowMapping) -> Failure | None:
    if row["failure_reason"] is None:
        return None
    return Failure(Reason(row["failure_reason"]), row["failure_message"], row["failure_traceback"])


# --------------------------------------------------------------------------- records to rows


def run_params(run: RunRecord) -> Params:
    return {
        "id": run.id,
        "name": run.name,
        "folder": run.folder,
        "status": run.status.value,
        "config": dump(run.config, f"the configuration of run {run.id}"),
        "created_at": run.created_at,
        "ended_at": run.ended_at,
        "error": printable(run.error),
    }


def step_params(step: StepRecord) -> Params:
    what = f"of step {step.step}"
    return {
        "run_id": step.run_id,
        "step": step.step,
        "versions": dump(step.versions, f"the versions {what}"),
        "metrics": dump(step.metrics, f"the metrics {what}"),
        "ledger": dump(step.ledger, f"the ledger {what}"),
        "checkpoint": step.checkpoint,
        "ended_at": step.ended_at,
    }


def intent_params(intent: Intent) -> Params:
    what = f"of the intent of step {intent.step}"
    return {
        "run_id": intent.run_id,
        "mode": intent.mode.value,
        "step": intent.step,
        "groups": dump(intent.groups, f"the groups {what}"),
        "versions": dump(intent.versions, f"the versions {what}"),
    }


def credit_params(credit: Sequence[CreditRow], step: StepRecord) -> list[Params]:
    where = {"run_id": step.run_id, "step": step.step}
    return [{**where, "policy": row.policy, "attempt_id": row.attempt_id, "blob": bytes(row.blob)} for row in credit]


def rollout_params(rollout: Rollout, now: float) -> Params:
    """A rollout to enqueue; ``created_at`` 0 becomes ``now``. Raises StoreError for one that is not queued."""
    if rollout.status is not Status.QUEUED:
        raise StoreError(f"rollout {rollout.id} cannot be enqueued: its status is {rollout.status.value}")
    return {
        "id": rollout.id,
        "run_id": rollout.run_id,
        "task": dump(rollout.task, f"the task of rollout {rollout.id}"),
        "mode": rollout.mode.value,
        "group": rollout.group,
        "index": rollout.index,
        "seed": rollout.seed,
        "resources_version": rollout.resources_version,
        "status": rollout.status.value,
        "created_at": rollout.created_at or now,
    }


def reward_params(reward: Reward, now: float) -> Params:
    """``created_at`` 0 becomes ``now``. Raises StoreError for a value that is no reward."""
    return {
        "rollout_id": reward.rollout_id,
        "attempt_id": reward.attempt_id,
        "value": checked_reward(reward.value, f"reward {reward.name!r} of attempt {reward.attempt_id}"),
        "name": reward.name,
        "source": reward.source,
        "call_id": reward.call_id,
        "agent": reward.agent,
        "reason": printable(reward.reason),
        "created_at": reward.created_at or now,
        "tool_call_id": reward.tool_call_id,
        "late": False,
        "attributes": None
        if reward.attributes is None
        else dump(reward.attributes, f"the attributes of reward {reward.name!r} of attempt {reward.attempt_id}"),
    }


def span_params(attempt_id: str, span: SpanRecord) -> Params:
    return {
        "attempt_id": attempt_id,
        "span_id": span.span_id,
        "parent_id": span.parent_id,
        "name": span.name,
        "attributes": dump(span.attributes, f"the attributes of span {span.name!r} of attempt {attempt_id}"),
        "status": span.status.value,
        "started_at": span.started_at,
        "ended_at": span.ended_at,
    }


def result_params(attempt_id: str, result: AttemptResult) -> Params:
    """The columns of an attempt's end; ``reward`` is its rollout's. Raises StoreError for a status or a reward that
    cannot end one."""
    if not result.status.final:
        raise StoreError(
            f"attempt {attempt_id} cannot finish with status {result.status.value}; use succeeded, failed or cancelled"
        )
    return {
        "status": result.status.value,
        "reward": None
        if result.reward is None
        else checked_reward(result.reward, f"the reward of attempt {attempt_id}"),
        "output": output_json(attempt_id, result.output),
        "marked": marked_json(attempt_id, result.marked),
        **failure_params(result.failure),
    }


def output_json(attempt_id: str, output: Json) -> str | None:
    """What an agent returned, as a column."""
    return None if output is None else dump(output, f"the output of attempt {attempt_id}")


def marked_json(attempt_id: str, marked: Sequence[str]) -> str | None:
    """The agents that an attempt marked, as a column."""
    return dump(list(marked), f"the agents marked by attempt {attempt_id}") if marked else None


def call_params(call: Call) -> Params:
    what = f"of call {call.id}"
    return {
        "id": call.id,
        "attempt_id": call.attempt_id,
        "index": call.index,
        "wire": call.wire,
        "model": call.model,
        "policy": call.policy,
        "status": call.status.value,
        "branch": call.branch,
        "prompt_node": call.prompt_node,
        "samples": dump(call.samples, f"the samples {what}"),
        "asked": dump(call.asked, f"what was asked {what}"),
        "used": None if call.used is None else dump(call.used, f"the sampling parameters {what}"),
        "prompt_tokens": call.prompt_tokens,
        "reused_tokens": call.reused_tokens,
        "sampled_tokens": call.sampled_tokens,
        "agent": call.agent,
        "error": printable(call.error),
        "received_at": call.received_at,
        "first_token_s": call.first_token_s,
        "total_s": call.total_s,
        "external": None
        if call.external is None
        else dump(call.external, f"what went to and came from an external model {what}"),
    }


def node_params(attempt_id: str, node: Node) -> Params:
    """Raises StoreError for arrays whose lengths disagree or whose values do not fit 32 bits."""
    lengths = {len(values) for values in (node.token_ids, node.logprobs, node.log_kept) if values is not None}
    whole = len(lengths) == 1 and (node.kept is None or len(node.kept.offsets) == len(node.token_ids) + 1)
    if not whole or (node.logprobs is not None) is not node.sampled:
        raise StoreError(
            f"node {node.id} of attempt {attempt_id} is malformed: one logprob per sampled token, none for given ones"
        )
    try:
        return {
            "attempt_id": attempt_id,
            "id": node.id,
            "parent": node.parent,
            "sampled": node.sampled,
            "call_index": node.call_index,
            "version": node.version,
            "token_ids": _blob(node.token_ids, "i"),
            "logprobs": _blob(node.logprobs, "f"),
            "log_kept": _blob(node.log_kept, "f"),
            "kept_ids": None if node.kept is None else _blob(node.kept.ids, "i"),
            "kept_offsets": None if node.kept is None else _blob(node.kept.offsets, "i"),
        }
    except (TypeError, OverflowError) as error:
        raise StoreError(
            f"node {node.id} of attempt {attempt_id} holds a value that is not a 32-bit number: {error}"
        ) from error


# --------------------------------------------------------------------------- rows to records


def to_run(row: RowMapping) -> RunRecord:
    return RunRecord(
        id=row["id"],
        name=row["name"],
        folder=row["folder"],
        status=RunStatus(row["status"]),
        config=orjson.loads(row["config"]),
        created_at=row["created_at"],
        ended_at=row["ended_at"],
        error=row["error"],
    )


def to_step(row: RowMapping) -> StepRecord:
    """``groups`` is the numbers of its groups with commas between, in any order; NULL where it has none."""
    return StepRecord(
        run_id=row["run_id"],
        step=row["step"],
        versions=orjson.loads(row["versions"]),
        groups=tuple(sorted(map(int, row["groups"].split(",")))) if row["groups"] else (),
        metrics=orjson.loads(row["metrics"]),
        ledger=orjson.loads(row["ledger"]),
        checkpoint=row["checkpoint"],
        ended_at=row["ended_at"],
    )


def to_credit(row: RowMapping) -> CreditRow:
    return CreditRow(row["policy"], row["attempt_id"], row["blob"])


def to_intent(row: RowMapping) -> Intent:
    return Intent(
        run_id=row["run_id"],
        step=row["step"],
        groups=tuple(orjson.loads(row["groups"])),
        versions=orjson.loads(row["versions"]),
        mode=Mode(row["mode"]),
    )


def to_rollout(row: RowMapping) -> Rollout:
    return Rollout(
        id=row["id"],
        run_id=row["run_id"],
        task=orjson.loads(row["task"]),
        mode=Mode(row["mode"]),
        group=row["group"],
        index=row["index"],
        seed=row["seed"],
        resources_version=row["resources_version"],
        status=Status(row["status"]),
        attempt_id=row["attempt_id"],
        reward=row["reward"],
        failure=_failure(row),
        created_at=row["created_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
    )


def to_attempt(row: RowMapping) -> Attempt:
    return Attempt(
        id=row["id"],
        rollout_id=row["rollout_id"],
        number=row["number"],
        runner_id=row["runner_id"],
        status=Status(row["status"]),
        lease_until=row["lease_until"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        failure=_failure(row),
        output=None if row["output"] is None else orjson.loads(row["output"]),
        marked=() if row["marked"] is None else tuple(orjson.loads(row["marked"])),
        score_until=row["score_until"],
    )


def to_call(row: RowMapping) -> Call:
    return Call(
        id=row["id"],
        attempt_id=row["attempt_id"],
        index=row["index"],
        wire=row["wire"],
        model=row["model"],
        policy=row["policy"],
        status=CallStatus(row["status"]),
        branch=row["branch"],
        prompt_node=row["prompt_node"],
        samples=tuple(_sample(value) for value in orjson.loads(row["samples"])),
        asked=orjson.loads(row["asked"]),
        used=None if row["used"] is None else _sampling(orjson.loads(row["used"])),
        prompt_tokens=row["prompt_tokens"],
        reused_tokens=row["reused_tokens"],
        sampled_tokens=row["sampled_tokens"],
        agent=row["agent"] if row["agent_set"] is None else row["agent_set"],
        error=row["error"],
        received_at=row["received_at"],
        first_token_s=row["first_token_s"],
        total_s=row["total_s"],
        external=None if row["external"] is None else External(**orjson.loads(row["external"])),
    )


def to_node(row: RowMapping) -> Node:
    return Node(
        id=row["id"],
        parent=row["parent"],
        sampled=row["sampled"],
        token_ids=_ints(row["token_ids"]),
        call_index=row["call_index"],
        logprobs=_floats(row["logprobs"]),
        log_kept=_floats(row["log_kept"]),
        kept=None if row["kept_offsets"] is None else KeptIds(_ints(row["kept_ids"]), _ints(row["kept_offsets"])),
        version=row["version"],
    )


def to_reward(row: RowMapping) -> Reward:
    return Reward(
        rollout_id=row["rollout_id"],
        attempt_id=row["attempt_id"],
        value=row["value"],
        name=row["name"],
        source=row["source"],
        call_id=row["call_id"],
        agent=row["agent"],
        reason=row["reason"],
        created_at=row["created_at"],
        tool_call_id=row["tool_call_id"],
        late=row["late"],
        attributes=None if row["attributes"] is None else orjson.loads(row["attributes"]),
    )


def to_span(row: RowMapping) -> SpanRecord:
    return SpanRecord(
        span_id=row["span_id"],
        parent_id=row["parent_id"],
        name=row["name"],
        attributes=orjson.loads(row["attributes"]),
        status=SpanStatus(row["status"]),
        started_at=row["started_at"],
        ended_at=row["ended_at"],
    )


def _sample(value: Mapping[str, Any]) -> SampleRecord:
    message = dict(value["message"])
    message["tool_calls"] = tuple(ToolCall(**call) for call in message["tool_calls"])
    return SampleRecord(value["node"], FinishReason(value["finish"]), Message(**message), value["malformed"])


def _sampling(value: Mapping[str, Any]) -> SamplingParams:
    fields: Params = {**value, "stop": tuple(value["stop"]), "stop_token_ids": tuple(value["stop_token_ids"])}
    return SamplingParams(**fields)
