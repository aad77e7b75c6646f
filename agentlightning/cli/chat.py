"""``agl chat``: a conversation with a model in the terminal, through the same engine and template that training uses.
Records nothing."""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
import threading
from array import array
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from agentlightning.cli.streams import say
from agentlightning.engines.base import Engine, SampleRequest
from agentlightning.errors import AgentLightningError, ContextLengthError
from agentlightning.nouns import FinishReason, Message, SamplingParams
from agentlightning.settings.fields import RunConfig

if TYPE_CHECKING:
    from agentlightning.templates import Template

T = TypeVar("T")
HELP = "/reset forgets the conversation, /quit ends it, Ctrl-C stops a reply"


def run(config: RunConfig, *, system: str | None, temperature: float, max_tokens: int, seed: int | None) -> None:
    """Reads lines from stdin until /quit or its end. Raises ModelError or ConfigError before the first."""
    from agentlightning.cli.engine import load_engine

    loop = _Loop()
    try:
        engine, template = loop.run(load_engine(config))
        try:
            session = Session(engine, template, system, SamplingParams(temperature, max_tokens=max_tokens, seed=seed))
            _converse(session, loop, config.model.path)
        finally:
            loop.run(engine.close())
    finally:
        loop.close()


def _converse(session: Session, loop: _Loop, model: str) -> None:
    interactive = sys.stdin.isatty()
    if interactive:
        import_module("readline")  # gives input() a history and editing

        say(f"{model}: {HELP}")
    while True:
        try:
            line = input("> " if interactive else "").strip()
        except (EOFError, KeyboardInterrupt):
            say()
            return
        if line == "/quit":
            return
        if line == "/reset":
            session.reset()
            say("the conversation begins anew")
            continue
        if line.startswith("/"):
            say(f"{line.split()[0]} is no command: {HELP}")
            continue
        if line:
            _reply(session, loop, line)


def _reply(session: Session, loop: _Loop, line: str) -> None:
    future = loop.start(session.reply(line, _show))
    try:
        finish = future.result()
        say("" if finish is FinishReason.STOP else f" [{finish}]")
    except KeyboardInterrupt:
        future.cancel()
        say(" [stopped]")
    except ContextLengthError as error:
        say(f"{error}: /reset begins anew")
    except AgentLightningError as error:
        say(str(error))


def _show(text: str) -> None:
    say(text, end="")


class Session:
    """A conversation. A reply that failed or was stopped leaves no trace in it."""

    def __init__(self, engine: Engine, template: Template, system: str | None, params: SamplingParams) -> None:
        self._engine = engine
        self._template = template
        self._system = [Message("system", system)] if system else []
        self._params = params
        self.messages: list[Message] = list(self._system)

    def reset(self) -> None:
        self.messages = list(self._system)

    async def reply(self, text: str, show: Callable[[str], None]) -> FinishReason:
        """Samples the next turn, handing its text to ``show`` as it grows."""
        asked = [*self.messages, Message("user", text)]
        prompt_ids = self._encode(asked)
        params = replace(self._params, stop_token_ids=self._template.stop_token_ids)
        parser = self._template.stream([])
        drawn: list[int] = []

        def on_tokens(ids: array[int]) -> None:
            drawn.extend(ids)
            show(parser.feed(ids).content)

        sample = await self._engine.sample(SampleRequest(f"chat-{len(asked)}", prompt_ids, params), on_tokens)
        show(parser.finish(sample.finish, sample.stop_string).content)
        self.messages = [*asked, self._template.read(drawn, [], sample.finish, sample.stop_string).message]
        return sample.finish

    def _encode(self, messages: Sequence[Message]) -> array[int]:
        (text,) = self._template.render(messages, [], {}).texts
        return self._template.encode(text, start=True)


class _Loop:
    """An event loop in a thread of its own, so that the main thread can wait for input and notice Ctrl-C."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chat", daemon=True)
        self._thread.start()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.start(coroutine).result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
