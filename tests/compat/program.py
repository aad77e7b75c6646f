"""A program's own agents, tracer and hooks. Imported in processes too."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agentlightning import AgentOpsTracer, LitAgent, Tracer, Triplet, emit_reward, rollout

_no_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ask(base_url: str, text: str, agent: str = "agent") -> Any:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 1}).encode()
    headers = {"Content-Type": "application/json", "X-Agent-Name": agent}
    request = urllib.request.Request(f"{base_url}/chat/completions", body, headers)
    with _no_proxy.open(request, timeout=600) as reply:
        return json.loads(reply.read())


def score(task: Any, llm: Any) -> float:
    text = ask(llm.endpoint, task["letter"])["choices"][0]["message"]["content"] or ""
    return float(text.startswith(task["letter"])) + 0.01 * len(text)


def plain(task: Any, llm: Any) -> float:
    return score(task, llm)


@rollout
async def decorated(task: Any, llm: Any) -> float:
    return score(task, llm)


def note(file: Path, line: str) -> None:
    with file.open("a") as stream:
        stream.write(f"{line}\n")


class Knows(LitAgent[Any]):
    def __init__(self, file: Path | None = None) -> None:
        super().__init__()
        self.file = file

    def rollout(self, task: Any, resources: Any, rollout: Any) -> float:
        note(self.file or self.tracer.file, f"agent {type(self.tracer).__name__}")
        return score(task, resources["main_llm"])


knows = Knows()


class Own(AgentOpsTracer):
    def __init__(self, file: Path) -> None:  # no super().__init__()
        self.file = file

    def init(self, *args: Any, **kwargs: Any) -> None:
        note(self.file, "init")

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        note(self.file, "teardown")

    @asynccontextmanager
    async def trace_context(self, name: str | None = None, **ids: Any) -> AsyncGenerator[Any]:
        note(self.file, "enter")
        async with super().trace_context(name, **ids) as context:
            yield context
        note(self.file, "leave")


class Hook:
    def __init__(self, file: Path) -> None:
        self.file = file

    async def on_rollout_start(self, *, agent: Any, runner: Any, rollout: Any) -> None:
        note(self.file, "on_rollout_start")

    async def on_trace_start(self, *, agent: Any, runner: Any, tracer: Any, rollout: Any) -> None:
        note(self.file, "on_trace_start")

    async def on_trace_end(self, *, agent: Any, runner: Any, tracer: Any, rollout: Any) -> None:
        note(self.file, "on_trace_end")

    async def on_rollout_end(self, *, agent: Any, runner: Any, rollout: Any) -> None:
        note(self.file, "on_rollout_end")


class BadHook:
    async def on_trace_end(self, *, tracer: Any) -> None:
        raise KeyError("mine")


class BadEnd(AgentOpsTracer):
    def teardown(self) -> None:
        raise RuntimeError("left open")


class Listener:
    """Keeps what a run says, and hears nothing else of it."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)

    def __getattr__(self, name: str) -> Any:
        def hear(*args: Any, **more: Any) -> None:
            """Nothing that is kept."""

        return hear


def traced(task: Any, llm: Any) -> float:
    """Makes a call that it gives a reward, asks what is recorded of it, and makes another."""
    assert Tracer().get_last_trace() == []
    first = ask(llm.endpoint, task["letter"], agent="first")
    emit_reward(0.25, call_id=first["id"], reason="short")
    spans = Tracer().get_last_trace()
    (call,) = [span for span in spans if span.name == "openai.chat.completion"]
    (reward,) = [span for span in spans if span.name == "agentlightning.reward"]
    assert call.attributes["gen_ai.response.id"] == first["id"] and call.attributes["agent.name"] == "first"
    assert call.attributes["prompt_token_ids"] and call.attributes["response_token_ids"]
    assert reward.attributes["reward"] == 0.25 and reward.parent_id == call.span_id
    assert {span.attempt_id for span in spans} == {llm.attempt_id}
    ask(llm.endpoint, task["letter"], agent="second")
    assert len(Tracer().get_last_trace()) == 3
    return 1.0


async def traced_async(task: Any, llm: Any) -> float:
    return traced(task, llm)


class Spans:
    """A hook that is handed an attempt's spans at its end."""

    def __init__(self, file: Path) -> None:
        self.file = file

    async def on_rollout_end(self, *, agent: Any, runner: Any, rollout: Any, spans: Any) -> None:
        note(self.file, " ".join(sorted(span.attributes.get("agent.name", span.name) for span in spans)))


def writes_and_checks(task: Any, llm: Any) -> float:
    ask(llm.endpoint, task["letter"], agent="check_query")
    text = ask(llm.endpoint, task["letter"], agent="rewrite_query")["choices"][0]["message"]["content"] or ""
    return float(text.startswith(task["letter"])) + 0.01 * len(text)


def returns_triplets(task: Any, llm: Any) -> list[Triplet]:
    ask(llm.endpoint, task["letter"])
    return [*triplets(Tracer().get_last_trace()), Triplet(prompt=[5], response=[6], reward=1.0)]


ports: list[str] = []


def tells_its_port(task: Any, llm: Any) -> float:
    ports.append(llm.endpoint)
    return plain(task, llm)


class Writes(LitAgent[Any]):
    """Notes which agents its Trainer's adapter matches."""

    def rollout(self, task: Any, llm: Any) -> float:
        note(Path(task["notes"]), str(self.trainer.adapter.agent_match))
        return writes_and_checks(task, llm)


writes = Writes()


class Named:
    """An adapter that says who is trained, and nothing else."""

    def __init__(self, agent_match: str | None = None) -> None:
        self.agent_match = agent_match


def triplets(spans: Any) -> list[Triplet]:
    return [
        Triplet(
            prompt={"token_ids": span.attributes["prompt_token_ids"]},
            response={"token_ids": span.attributes["response_token_ids"]},
            metadata={"agent_name": span.attributes["agent.name"]},
        )
        for span in spans
        if "response_token_ids" in span.attributes
    ]


def halves(spans: Any) -> list[Triplet]:
    """Half a reward for what one agent said, none for the other's."""
    made = triplets(spans)
    for triplet in made:
        triplet.reward = 0.5 if triplet.metadata["agent_name"] == "rewrite_query" else 0.0
    return made


class Halves:
    async def adapt(self, source: Any, /) -> Any:
        return halves(source)


class Exports:
    def export(self, spans: Any) -> list[Triplet]:
        return halves(spans)


class BadAdapter:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def adapt(self, spans: Any) -> Any:
        raise self.error


class Makes:
    def __init__(self, made: Any) -> None:
        self.made = made

    def adapt(self, spans: Any) -> Any:
        return self.made


class Hangs:
    def adapt(self, spans: Any) -> Any:
        time.sleep(3600)
