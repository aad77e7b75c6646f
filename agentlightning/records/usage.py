"""What an attempt did at the gateway, counted as it does it. Knows nothing of calls' lives; the session and the server
tell it."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from agentlightning.nouns import Message, Tool
from agentlightning.text import clean_name

MAX_NOTED = 16
"""Distinct unknown paths, user agents, agents and tools that are listed."""

MAX_SHOWN = 200
"""Characters of a path, a user agent or a system prompt that are kept."""


@dataclass(frozen=True, slots=True)
class SeenAgent:
    """What is known of an agent besides its name: how it got the name, the beginning of its system prompt, and its
    tools."""

    how: str
    system: str
    tools: tuple[str, ...]


@dataclass(slots=True)
class Meter:
    """Counts the tokens of requests while they are drawn, also of those that are withdrawn. An engine adds to it,
    anybody reads it."""

    tokens: int = 0


@dataclass(slots=True)
class EngineUse(Meter):
    """What an attempt waited for the engine: ``seconds`` in which at least one of its requests was queued or sampled,
    and their tokens.

    ``cut`` are the requests that were there when the attempt ended; ``lasted`` is how many seconds it had been open by
    then.
    """

    seconds: float = 0.0
    cut: int = 0
    lasted: float = 0.0
    _opened: float = field(default_factory=lambda: time.monotonic())
    _open: int = 0
    _since: float = 0.0

    @contextmanager
    def waited_for(self) -> Generator[None]:
        """Around a request to the engine."""
        if not self._open:
            self._since = time.monotonic()
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            if not self._open:
                self.seconds += time.monotonic() - self._since

    def note_end(self) -> None:
        """The attempt ends now. What is open will be withdrawn."""
        self.cut, self.lasted = self._open, time.monotonic() - self._opened


@dataclass(slots=True)
class CompactionUse:
    """How often an attempt's histories were shortened, from how many tokens to how many altogether, how often that
    did not work, and what was said of it last."""

    made: int = 0
    failed: int = 0
    tokens_before: int = 0
    tokens_after: int = 0
    trouble: str | None = None

    def done(self, before: int, after: int) -> None:
        self.made += 1
        self.tokens_before += before
        self.tokens_after += after

    def fail(self, why: str) -> None:
        self.failed += 1
        self.trouble = why


@dataclass(slots=True)
class ExternalUsage:
    """What an attempt did with one external model. ``prompt_tokens`` and ``reply_tokens`` are what its endpoint says.

    ``trouble`` is what the last call failed with, or how long the endpoint stayed silent, where that was its fault and
    no later call got an answer; ``left`` are calls that were still waiting for it when the attempt ended.
    """

    calls: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    reply_tokens: int = 0
    trouble: str | None = None
    left: int = 0


@dataclass(slots=True)
class AttemptUsage:
    """What an attempt did at the gateway. ``late`` and ``late_rewards`` go on counting after the attempt has ended:
    what came with its revoked key.

    ``calls`` are all that reached the gateway, refused ones too; ``repeats`` are requests that got the reply of an
    earlier call and are no calls. ``unserved`` are paths that were asked for in vain, each with what was answered;
    ``agents`` those that made calls, by name. Calls to external models are none of the ``calls``: ``external`` has
    them, by the model's name in the resources. ``trainable``: whether there is a policy that calls could go to.
    ``tool_errors`` are tool calls whose result came back as an error, each once.
    ``unsaid`` are the calls whose request named no agent, by id, with the name that a rule or their content gave.
    """

    calls: int = 0
    refused: int = 0
    incomplete: int = 0
    abandoned: int = 0
    repeats: int = 0
    rewards: int = 0
    sampled_tokens: int = 0
    context_length_errors: int = 0
    tool_errors: int = 0
    late: int = 0
    late_rewards: int = 0
    unserved: Mapping[str, str] = field(default_factory=dict[str, str])
    user_agents: tuple[str, ...] = ()
    agents: Mapping[str, SeenAgent] = field(default_factory=dict[str, SeenAgent])
    last_error: str | None = None
    external: dict[str, ExternalUsage] = field(default_factory=dict[str, ExternalUsage])
    engine: EngineUse = field(default_factory=EngineUse)
    compaction: CompactionUse = field(default_factory=CompactionUse)
    trainable: bool = True
    unsaid: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def trouble(self) -> str | None:
        """Why an external model did not answer, where the attempt did not get over it."""
        return next((use.trouble for use in self.external.values() if use.trouble is not None), None)

    def note_client(self, user_agent: str | None) -> None:
        if user_agent and user_agent not in self.user_agents and len(self.user_agents) < MAX_NOTED:
            self.user_agents += (user_agent[:MAX_SHOWN],)

    def note_agent(self, name: str, how: str, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
        if name not in self.agents and len(self.agents) < MAX_NOTED:
            system = next((message.content for message in messages if message.role == "system"), "")
            seen = SeenAgent(how, system[:MAX_SHOWN], tuple([tool.name for tool in tools[:MAX_NOTED]]))
            self.agents = {**self.agents, name: seen}

    def name_calls(self, told: Iterable[tuple[str, str, str]]) -> dict[str, str]:
        """The agents of calls by the call's id, of what the agent's process ``told``: a reply's id, a name, and how it
        came by it. A call whose request named its agent keeps that name, the first that is told of another counts, and
        what is no call of this attempt is refused. A name that no call has any more is no agent's."""
        named: dict[str, str] = {}
        ways: dict[str, tuple[str, str]] = {}
        for reply_id, said, how in told:
            name = clean_name(said)
            if reply_id in self.unsaid and reply_id not in named and name is not None:
                named[reply_id] = name
                ways.setdefault(name, (reply_id, how))
        met = self.agents
        still = {name for call_id, name in self.unsaid.items() if call_id not in named}
        gone = {self.unsaid[call_id] for call_id in named} - still
        self.agents = {name: seen for name, seen in met.items() if name not in gone}
        for name, (reply_id, how) in ways.items():
            if name not in self.agents and len(self.agents) < MAX_NOTED:
                was = met.get(self.unsaid[reply_id], SeenAgent("", "", ()))
                self.agents = {**self.agents, name: replace(was, how=f"span's {how}")}
        return named

    def note_unserved(self, path: str, answer: str) -> None:
        if len(self.unserved) < MAX_NOTED:
            self.unserved = {**self.unserved, path[:MAX_SHOWN]: answer}
