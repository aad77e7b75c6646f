"""Who sets sampling (ruling 3): what an agent asked for and what the run says, put together. Pure."""

from __future__ import annotations

from hashlib import blake2b

from agentlightning.config import EvaluationConfig, SamplingConfig
from agentlightning.gateway.wires.base import WireRequest
from agentlightning.types import SamplingParams


def resolve(sampling: SamplingConfig | EvaluationConfig, asked: WireRequest, stop_token_ids: tuple[int, ...], seed: int) -> SamplingParams:
    """The parameters of one sample. ``max_tokens`` is a ceiling the agent may stay under; stop strings are always the agent's."""
    agent_decides = isinstance(sampling, SamplingConfig) and sampling.owner == "agent"
    return SamplingParams(
        temperature=asked.temperature if agent_decides and asked.temperature is not None else sampling.temperature,
        top_p=asked.top_p if agent_decides and asked.top_p is not None else sampling.top_p,
        top_k=asked.top_k if agent_decides and asked.top_k is not None else sampling.top_k,
        max_tokens=sampling.max_tokens if asked.max_tokens is None else min(asked.max_tokens, sampling.max_tokens),
        stop=asked.stop,
        stop_token_ids=stop_token_ids,
        seed=seed,
    )


def overruled(asked: WireRequest, used: SamplingParams) -> str | None:
    """What the agent asked for and does not get, as ``temperature=0.0 (used: 1.0)``; None where it gets all."""
    pairs = (
        ("temperature", asked.temperature, used.temperature),
        ("top_p", asked.top_p, used.top_p),
        ("top_k", asked.top_k, used.top_k),
    )
    return ", ".join(f"{name}={theirs} (used: {ours})" for name, theirs, ours in pairs if theirs is not None and theirs != ours) or None


def sample_seed(rollout_seed: int, attempt: int, call: int, sample: int, agent_seed: int | None) -> int:
    """63 bits that are the same for the same place in the same run, and different everywhere else.

    The agent's own seed is one ingredient, never the seed itself: the members of a group would be twins.
    """
    place = f"{rollout_seed} {attempt} {call} {sample} {agent_seed}".encode()
    return int.from_bytes(blake2b(place, digest_size=8).digest(), "big") >> 1
