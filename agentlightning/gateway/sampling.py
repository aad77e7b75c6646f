"""What one sample is drawn with: what an agent asked for and what the run says (ruling 3), and the grammar that its
request puts on it."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

from agentlightning.engines.base import ConstrainedEngine, Engine
from agentlightning.errors import GrammarError
from agentlightning.gateway.wires.base import OutputFormat, WireRequest
from agentlightning.gateway.wires.fields import unsupported
from agentlightning.nouns import Json, SamplingParams, Tool
from agentlightning.settings.fields import EvaluationConfig, SamplingConfig
from agentlightning.templates.base import Template
from agentlightning.templates.grammar.reply import ANY_OBJECT, Text, reasoning_of, reply_grammar


def used_sampling(
    sampling: SamplingConfig | EvaluationConfig,
    request: WireRequest,
    stop_token_ids: tuple[int, ...],
    seed: int,
    grammar: str | None = None,
) -> SamplingParams:
    """The parameters of one sample. ``max_tokens`` is a ceiling the agent may stay under; stop strings are always the
    agent's."""
    agent_decides = isinstance(sampling, SamplingConfig) and sampling.owner == "agent"
    asked = request.sampling
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


async def constraint(request: WireRequest, template: Template, engine: Engine) -> str | None:
    """The grammar that a request puts on its samples, checked by the engine; None where they are free. Raises CallError
    that names the setting."""
    use = request.tool_use
    required = use.choice == "required"
    strict = [i for i, tool in enumerate(request.tools) if tool.strict and use.choice != "none"]
    if required or (request.tools and use.choice == "auto" and use.names is not None):
        calls = (
            use.setting_names.choice,
            request.asked.get("tool_choice") or request.asked.get("function_calling_config") or use.choice,
        )
    elif request.tools and use.choice == "auto" and not use.parallel:
        calls = use.setting_names.parallel
    else:
        calls = None
    output = None if request.output is None or required else (request.output.where, request.output.value)
    what = calls or output
    if not isinstance(engine, ConstrainedEngine):
        if what is not None:
            raise unsupported(
                *what, f"the engine of this model ({type(engine).__name__}) cannot keep a sample to a grammar"
            )
        return None
    if what is None:
        if not strict:
            return None
        what = use.setting_names.strict.format(strict[0]), True
    allowed = None if use.names is None else frozenset(use.names)
    tools = tuple(tool for tool in request.tools if allowed is None or tool.name in allowed)
    if use.choice == "none":
        tools = ()
    # A client that names one function expects one call of it.
    parallel = use.parallel and not (required and use.names is not None and len(use.names) == 1)
    try:
        wanted = None if request.output is None or required else _wanted(request.output)
    except GrammarError as error:
        raise unsupported(*(output or what), str(error)) from error
    reasoning = reasoning_of(template) if request.prompt is None else None

    async def checked(tools: tuple[Tool, ...], wanted: Mapping[str, Json] | Text | None) -> str:
        bare = request.prompt is not None
        grammar = reply_grammar(
            template, tools, required=required, parallel=parallel, output=wanted, reasoning=reasoning, bare=bare
        )
        await engine.check_grammar(grammar)
        return grammar

    try:
        return await checked(tools, wanted)
    except GrammarError as error:
        for tool in tools:
            try:
                await checked((tool,), None)
            except GrammarError as found:
                if calls is None and tool.strict:
                    what = use.setting_names.strict.format(request.tools.index(tool)), True
                why = str(found) if repr(tool.name) in str(found) else f"the parameters of tool {tool.name!r}: {found}"
                raise unsupported(*what, why) from error
        raise unsupported(*(output or what), str(error)) from error


def _wanted(output: OutputFormat) -> Mapping[str, Json] | Text:
    if output.grammar is not None:
        from agentlightning.engines.grammar import as_lark  # the gateway itself needs none of what computes grammars

        return Text(lark=as_lark(output.grammar))
    if output.regex is not None or output.choice is not None:
        return Text(output.regex, output.choice or ())
    return ANY_OBJECT if output.schema is None else output.schema


def unconstrained_tools(request: WireRequest, engine: Engine) -> str | None:
    """The strict tools whose calls the engine cannot keep to their schemas; None where there are none."""
    strict = [tool.name for tool in request.tools if tool.strict and request.tool_use.choice != "none"]
    return ", ".join(strict) if strict and not isinstance(engine, ConstrainedEngine) else None


def overruled(request: WireRequest, used: SamplingParams) -> str | None:
    """What the agent asked for and does not get, as ``temperature=0.0 (used: 1.0)``; None where it gets all."""
    asked = request.sampling
    pairs = (
        ("temperature", asked.temperature, used.temperature),
        ("top_p", asked.top_p, used.top_p),
        ("top_k", asked.top_k, used.top_k),
    )
    return (
        ", ".join(
            f"{name}={theirs} (used: {ours})" for name, theirs, ours in pairs if theirs is not None and theirs != ours
        )
        or None
    )


def sample_seed(rollout_seed: int, attempt: int, call: int, sample: int, agent_seed: int | None) -> int:
    """63 bits that are the same for the same place in the same run, and different everywhere else.

    The agent's own seed is one ingredient, never the seed itself: the members of a group would be twins.
    """
    place = f"{rollout_seed} {attempt} {call} {sample} {agent_seed}".encode()
    return int.from_bytes(blake2b(place, digest_size=8).digest(), "big") >> 1
