"""Settings that other servers take beside an API's own, and agents send to any endpoint: one table for all wires.

Pure. Each constrains a sample or changes a prompt, so none is ignored: it is honoured (a grammar, by `OutputFormat`;
what the chat template takes, by `WireRequest.template_kwargs`) or refused by name in the wire's error shape. They are
read at the top of a request, inside an ``extra_body``, which some clients send as it is, and where a wire has its
settings. What a wire has of its own is the wire's to read, and what says nothing about prompt and sample is in no
table.

From the request types of vLLM, SGLang, llama.cpp's server, Ollama, TGI and OpenRouter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import orjson

from agentlightning.gateway.wires.base import OutputFormat, WireRequest
from agentlightning.gateway.wires.chat_completions import read_format
from agentlightning.gateway.wires.fields import (
    bad,
    boolean,
    check_depth,
    mapping,
    refuse_unless_neutral,
    settings,
    shown,
    unsupported,
)
from agentlightning.nouns import Json

MAX_KWARGS = 16 * 1024
"""Bytes of JSON that a chat template may be handed."""

_MAX_TOKENS = "use the API's own limit (max_tokens, max_output_tokens)"
_WHOLE_PROMPT = "a prompt is used whole or refused"
_AS_IT_IS = "the model's own chat template is used"

REFUSED: Mapping[str, tuple[tuple[Json, ...], str]] = {
    # the probabilities of what is sampled
    "presence_penalty": ((0,), ""),
    "frequency_penalty": ((0,), ""),
    "repetition_penalty": ((1,), ""),
    "repeat_penalty": ((1,), ""),
    "length_penalty": ((1,), ""),
    "penalty_alpha": ((0,), ""),
    "no_repeat_ngram_size": ((0,), ""),
    "dry_multiplier": ((0,), ""),
    "xtc_probability": ((0,), ""),
    "mirostat": ((0,), ""),
    "dynatemp_range": ((0,), ""),
    "smoothing_factor": ((0,), ""),
    "min_p": ((0,), "use top_p or top_k"),
    "top_a": ((0,), "use top_p or top_k"),
    "typical_p": ((1,), "use top_p or top_k"),
    "tfs_z": ((1,), "use top_p or top_k"),
    "top_n_sigma": ((-1, 0), "use top_p or top_k"),
    "eta_cutoff": ((0,), "use top_p or top_k"),
    "epsilon_cutoff": ((0,), "use top_p or top_k"),
    "min_keep": ((0,), ""),
    "logit_bias": (({}, []), ""),
    "logits_processors": (([],), ""),
    "custom_logit_processor": ((), ""),
    "allowed_token_ids": (([],), "guided_choice and guided_regex keep a sample to texts"),
    "bad_words": (([],), ""),
    "bad_words_ids": (([],), ""),
    "watermark": ((False,), ""),
    "use_beam_search": ((False,), ""),
    "num_beams": ((1,), ""),
    "best_of": ((1,), "use n"),
    "vllm_xargs": (({},), ""),
    # where a sample ends
    "min_tokens": ((0,), ""),
    "min_new_tokens": ((0,), ""),
    "min_length": ((0,), ""),
    "max_new_tokens": ((), _MAX_TOKENS),
    "max_length": ((), _MAX_TOKENS),
    "n_predict": ((-1,), _MAX_TOKENS),
    "num_predict": ((-1,), _MAX_TOKENS),
    "t_max_predict_ms": ((0,), _MAX_TOKENS),
    "ignore_eos": ((False,), ""),
    "stop_token_ids": (([],), "use stop"),
    "stop_regex": (([], ""), "use stop"),
    "include_stop_str_in_output": ((False,), ""),
    "no_stop_trim": ((False,), ""),
    "skip_special_tokens": ((True,), "return_token_ids=true tells all tokens"),
    # grammars that are none of ours
    "structural_tag": ((), "strict tools keep calls to their schemas"),
    "grammar_lazy": ((False,), ""),
    "grammar_triggers": (([],), ""),
    # the prompt
    "truncate_prompt_tokens": ((), _WHOLE_PROMPT),
    "truncate": ((), _WHOLE_PROMPT),
    "transforms": (([],), _WHOLE_PROMPT),
    "prompt_logprobs": ((False,), "logprobs of the sampled tokens are available"),
    "prompt_embeds": ((), ""),
    "input_ids": ((), "use completions, whose prompt may be token ids"),
    "input_embeds": ((), ""),
    "chat_template": ((), _AS_IT_IS),
    "template": ((), _AS_IT_IS),
    "tool_prompt": ((), _AS_IT_IS),
    "raw": ((False,), "use completions"),
    "add_generation_prompt": ((True,), "the model begins its own turn"),
    "continue_final_message": ((False,), "the model begins its own turn"),
    "add_special_tokens": ((False,), "the chat template writes the ones it wants"),
    "documents": (([],), "put them into a message"),
    "mm_processor_kwargs": (({},), ""),
    "safe_prompt": ((False,), "put it into the system message"),
    "echo": ((False,), ""),
    "options": (({},), "send its settings beside the messages"),
    # other weights
    "lora": (([],), ""),
    "lora_path": ((), ""),
    "adapter_id": ((), ""),
}
"""By name: the values (besides null) that ask for nothing, and what to do instead."""

_JSON = ("guided_json", "json_schema", "guided_json_object", "format")
_TEXT = {
    "guided_regex": "regex",
    "regex": "regex",
    "guided_grammar": "grammar",
    "ebnf": "grammar",
    "grammar": "grammar",
}
_OUTPUTS = (*_JSON, *_TEXT, "guided_choice", "structured_outputs", "response_format")
_KWARGS = ("chat_template_kwargs", "enable_thinking")

_OWN: Mapping[str, frozenset[str]] = {
    "chat": frozenset(("response_format",)),
    "completions": frozenset(("echo", "best_of", "prompt_logprobs")),
}
"""What a wire reads itself."""
_WITHIN: Mapping[str, tuple[str, ...]] = {"gemini": ("generationConfig", "generation_config")}
"""Where a wire has its settings, besides the top of a request."""
_OWN_WITHIN = frozenset(("response_format", "presence_penalty", "frequency_penalty"))
"""What a wire reads there itself, in either of its spellings."""

_ALL = frozenset((*REFUSED, *_OUTPUTS, *_KWARGS, "extra_body"))

_NOT_HANDED = (
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
    "tokenize",
    "chat_template",
)


def with_extra_settings(wire: str, request: WireRequest, body: Mapping[str, Json]) -> WireRequest:
    """The request with what ``body`` asks of it beside the wire's own fields. Raises CallError."""
    within = [(f"{name}.", settings(body, name)) for name in _WITHIN.get(wire, ()) if name in body]
    if all(_ALL.isdisjoint(fields) for fields in (body, *(fields for _, fields in within))):
        return request
    places = (("", body), ("extra_body.", settings(body, "extra_body")), *within)
    outputs = [request.output] if request.output is not None else []
    kwargs: dict[str, Json] = {}
    for where, fields in places:
        own = _OWN.get(wire, ()) if where in ("", "extra_body.") else _OWN_WITHIN
        given = {name: fields[name] for name in fields.keys() & _ALL if fields[name] is not None and name not in own}
        refuse_unless_neutral(given, _NEUTRAL, _INSTEAD, where)
        outputs += [
            found for name in _OUTPUTS if name in given and (found := _output(name, given[name], where)) is not None
        ]
        kwargs |= _kwargs(given, where)
    if len(outputs) > 1:
        first, second = outputs[0].where, outputs[1].where
        raise bad(f"{first} and {second} both say what the reply has to be: use one of them", second)
    if kwargs and request.prompt is not None:
        raise unsupported("chat_template_kwargs", kwargs, "a prompt of this API goes through no chat template")
    if kwargs:
        request = replace(request, template_kwargs=kwargs, asked={**request.asked, "chat_template_kwargs": kwargs})
    return replace(request, output=outputs[0]) if outputs else request


_NEUTRAL = {name: neutral for name, (neutral, _) in REFUSED.items()}
_INSTEAD = {name: instead for name, (_, instead) in REFUSED.items() if instead}


def _output(name: str, value: Any, prefix: str) -> OutputFormat | None:
    """What one field says that the reply has to be; None where it says nothing."""
    where = prefix + name
    if name == "response_format":
        return read_format(value, where)
    if name == "guided_json_object":
        return OutputFormat(where=where, value=True) if boolean({name: value}, name, param=where) else None
    if name == "structured_outputs":
        return _structured(value, where)
    if name == "guided_choice":
        return _choice(value, where)
    if name == "grammar" and isinstance(value, dict):  # TGI's
        fields = mapping(value)
        kind = fields.get("type")
        if kind not in ("json", "json_schema", "regex"):
            raise bad(f"{where} must be of type json or regex (with its value), not {shown(value)}", where)
        return _text("regex", fields.get("value"), where) if kind == "regex" else _schema(fields.get("value"), where)
    if name in _TEXT:
        return _text(_TEXT[name], value, where)
    if name == "format" and value == "":
        return None
    return OutputFormat(where=where, value=value) if name == "format" and value == "json" else _schema(value, where)


def _structured(value: Any, where: str) -> OutputFormat | None:
    """vLLM's object, of which one member says what the reply has to be."""
    if not isinstance(value, dict):
        raise bad(f"{where} must be an object, not {shown(value)}", where)
    fields = {
        name: each for name, each in cast("dict[str, Any]", value).items() if each is not None and each is not False
    }
    kinds = [name for name in ("json", "json_object", "regex", "choice", "grammar", "structural_tag") if name in fields]
    wrong = [name for name in fields if name not in kinds and not name.startswith(("disable_", "_"))]
    if "structural_tag" in kinds or wrong:
        name = "structural_tag" if "structural_tag" in kinds else wrong[0]
        raise unsupported(f"{where}.{name}", fields[name])
    if len(kinds) > 1:
        raise bad(f"{where} has {kinds[0]} and {kinds[1]}: leave one out", where)
    if not kinds:
        return None
    kind, each = kinds[0], fields[kinds[0]]
    if kind == "json_object":
        return OutputFormat(where=where, value=kind)
    if kind == "json":
        return _schema(each, f"{where}.json")
    return _choice(each, f"{where}.choice") if kind == "choice" else _text(kind, each, f"{where}.{kind}")


def _schema(value: Any, where: str) -> OutputFormat:
    """A JSON schema, also where it is written as text."""
    schema = value
    if isinstance(value, str):
        try:
            schema = orjson.loads(value)
        except ValueError as error:
            raise bad(f"{where} is no JSON: {error}", where) from error
    if not isinstance(schema, dict):
        raise bad(f"{where} must be a JSON schema, not {shown(value)}", where)
    check_depth(schema, where)
    return OutputFormat(cast("dict[str, Json]", schema), where, schema)


def _text(kind: str, value: Any, where: str) -> OutputFormat:
    if not isinstance(value, str) or not value.strip():
        raise bad(
            f"{where} must be a {'regular expression' if kind == 'regex' else 'grammar'} as a text, not {shown(value)}",
            where,
        )
    return (
        OutputFormat(None, where, value, regex=value)
        if kind == "regex"
        else OutputFormat(None, where, value, grammar=value)
    )


def _choice(value: Any, where: str) -> OutputFormat | None:
    listed = cast("list[Any]", value) if isinstance(value, list) else [None]
    texts = [each for each in listed if isinstance(each, str)]
    if len(texts) < len(listed):
        raise bad(f"{where} must be a list of texts, not {shown(value)}", where)
    return OutputFormat(None, where, value, choice=tuple(dict.fromkeys(texts))) if texts else None


def _kwargs(given: Mapping[str, Any], prefix: str) -> dict[str, Json]:
    where = f"{prefix}chat_template_kwargs"
    if not given.keys() & _KWARGS:
        return {}
    kwargs = dict(settings(given, "chat_template_kwargs"))
    if given.get("enable_thinking") is not None:  # so some providers spell the one that is used most
        kwargs.setdefault("enable_thinking", boolean(given, "enable_thinking", param=f"{prefix}enable_thinking"))
    check_depth(kwargs, where)
    for name in kwargs:
        if name in _NOT_HANDED:
            raise unsupported(f"{where}.{name}", kwargs[name], _AS_IT_IS)
    if len(orjson.dumps(kwargs)) > MAX_KWARGS:
        raise bad(f"{where} is larger than {MAX_KWARGS // 1024} KB", where)
    return kwargs
