"""Engine: tokens in, tokens with logprobs and version out. Knows nothing of messages, wires, stores or rewards."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from agentlightning.nouns import FinishReason, SamplingParams, Segment
from agentlightning.records.usage import Meter


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One sample to draw. ``params`` is fully resolved; ``prompt_ids`` holds at least one token."""

    id: str
    prompt_ids: array[int]
    params: SamplingParams
    policy: str = "main"
    meter: Meter | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Sample:
    """What was drawn, in order. More than one segment only where the policy's version changed while it was sampled.

    ``stop_string`` is the string that ended it, whose tokens are part of the last segment. Times are seconds.
    """

    segments: tuple[Segment, ...]
    finish: FinishReason
    stop_string: str | None = None
    reused_tokens: int = 0
    queue_s: float = 0.0
    first_token_s: float = 0.0
    total_s: float = 0.0


OnTokens = Callable[["array[int]"], None]
"""Called on the caller's event loop with newly sampled ids, in order; never after ``sample`` has returned."""


class Engine(Protocol):
    """A model that samples.

    ``sample`` may be awaited from any event loop in any thread. Cancelling the awaiting task withdraws the request and
    frees what it held. Raises ContextLengthError when the prompt leaves no room for one token, EngineError when
    sampling failed.
    """

    @property
    def context_length(self) -> int:
        """Tokens a prompt and its sample may hold together."""
        ...

    def version(self, policy: str = "main") -> int:
        """The policy version that a request admitted now would be sampled from."""
        ...

    async def sample(self, request: SampleRequest, on_tokens: OnTokens | None = None) -> Sample: ...

    async def close(self) -> None: ...


@runtime_checkable
class ConstrainedEngine(Protocol):
    """An engine that keeps to ``SamplingParams.grammar``. One that is none refuses such a request by name."""

    async def check_grammar(self, grammar: str) -> None:
        """Raises GrammarError where samples cannot be kept to the grammar. What has been checked is not compiled again
        to be sampled."""
        ...
