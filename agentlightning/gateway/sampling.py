"""What one sample is drawn with: what an agent asked for and what the run says (ruling 3), and the grammar that its request puts on it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from hashlib import blake2b

from agentlightning.config import EvaluationConfig, SamplingConfig
from agentlightning.engines.base import ConstrainedEngine, Engine
from agentlightning.errors import GrammarError
from agentlightning.gateway.wires.base import WireRequest
from agentlightning.gateway.wires.fields import unsupported
from agentlightning.templates.base import Template
from agentlightning.templates.grammar import ANY_OBJECT, reasoning_of, reply_grammar
from agentlightning.types import Json, SamplingParams, Tool


def resolve(
    sampling: SamplingConfig | EvaluationConfig,
    asked: WireRequest,
    stop_token_ids: tuple[int, ...],
    seed: int,
    grammar: str | None = None,
) -> SamplingParams:
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
        grammar=grammar,
    )


async def constraint(asked: WireRequest, template: Template, engine: Engine) -> str | None:
    """The grammar that a request puts on its samples, checked by the engine; None where they are free. Raises CallError by name."""
    tools = tuple(tool for tool in asked.tools if asked.tool_names is None or tool.name in asked.tool_names)
    if asked.tool_choice == "none":
        tools = ()
    required = asked.tool_choice == "required"
    chosen = asked.tools and asked.tool_choice == "auto" and (asked.tool_names is not None or not asked.parallel_tool_calls)
    if not required and not chosen and asked.output is None:
        return None
    if required:
        what = "tool_choice", "required" if asked.tool_names is None else list(asked.tool_names)
    elif asked.output is not None:
        what = "response_format", "json_object" if asked.output.schema is None else "json_schema"
    else:
        what = ("parallel_tool_calls", False) if asked.tool_names is None else ("tool_choice", list(asked.tool_names))
    if not isinstance(engine, ConstrainedEngine):
        raise unsupported(*what, f"the engine of this model ({type(engine).__name__}) cannot keep a sample to a grammar")
    # A client that names one function expects one call of it.
    parallel = asked.parallel_tool_calls and not (required and asked.tool_names is not None and len(asked.tool_names) == 1)
    output = None if asked.output is None else ANY_OBJECT if asked.output.schema is None else asked.output.schema
    reasoning = reasoning_of(template) if asked.prompt is None else None

    async def checked(tools: tuple[Tool, ...], output: Mapping[str, Json] | None) -> str:
        grammar = reply_grammar(template, tools, required=required, parallel=parallel, output=output, reasoning=reasoning)
        await engine.check_grammar(grammar)
        return grammar

    try:
        return await checked(tools, output)
    except GrammarError as error:
        raise unsupported(*what, await _culprit(checked, tools, output) or str(error)) from error


async def _culprit(
    checked: Callable[[tuple[Tool, ...], Mapping[str, Json] | None], Awaitable[str]],
    tools: tuple[Tool, ...],
    output: Mapping[str, Json] | None,
) -> str | None:
    """Which of several schemas the engine cannot keep to, and why."""
    for tool in tools:
        try:
            await checked((tool,), None)
        except GrammarError as error:
            return str(error) if repr(tool.name) in str(error) else f"the parameters of tool {tool.name!r}: {error}"
    return None


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
