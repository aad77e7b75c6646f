"""Every field that the official clients' own types know is decided on: served, without effect on a sample, or refused
by name.

A release of a client that knows one field more fails here, until somebody says which it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, get_args

import anthropic.types as claude
import anthropic.types.beta as beta
import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_count_tokens_params as beta_count_params
from anthropic.types.beta import message_create_params as beta_params
from google.genai import types as gemini
from openai.types import chat, completion_create_params, responses, shared_params
from openai.types.beta import response_create_params as beta_response_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import input_token_count_params, response_create_params

from agentlightning.gateway.kept_replies import KeptReplies
from agentlightning.gateway.wires import find_wire
from agentlightning.gateway.wires.base import CallError, Target, WireRequest
from agentlightning.gateway.wires.unserved import Unserved

SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}


@dataclass(frozen=True)
class Served:
    """``value`` changes the call that is made. ``told``: it changes the reply alone, and the record's copy of the
    request says so."""

    value: Any
    told: bool = False


@dataclass(frozen=True)
class Same:
    """``value`` makes no difference to a sample: it says who pays, where it runs, what is cached or kept, who watches,
    or how much to think."""

    value: Any


@dataclass(frozen=True)
class Refused:
    """``value`` is refused by the field's name, ``neutral`` asks for nothing."""

    value: Any
    neutral: Any = None


@dataclass(frozen=True)
class Elsewhere:
    """No field of a body: a header, or the client's own. Or one that another test is about."""


Decided = Served | Same | Refused | Elsewhere


@dataclass(frozen=True)
class Place:
    """Where fields are: the path of the API, a body without them, the object in it that holds them, and what each of
    them does."""

    path: str
    body: Mapping[str, Any]
    at: tuple[str | int, ...]
    known_to: tuple[Any, ...]
    fields: Mapping[str, Decided]

    def read(self, changes: Mapping[str, Any]) -> WireRequest:
        wire = find_wire(self.path)
        assert wire is not None and not isinstance(wire, Unserved)
        changes = {self.written(name): value for name, value in changes.items()}
        return wire.request(Target("POST", self.path), _changed(self.body, self.at, changes), KeptReplies())

    def written(self, field: str) -> str:
        """A field's name as the API writes it: Google's client knows its fields by other names."""
        return re.sub("_([a-z])", lambda found: found[1].upper(), field) if self.path.startswith("models/") else field


def _changed(value: Any, at: tuple[str | int, ...], changes: Mapping[str, Any]) -> Any:
    if not at:
        return {**value, **changes}
    if isinstance(value, list):
        return [_changed(each, at[1:], changes) if i == at[0] else each for i, each in enumerate(value)]
    return {**value, at[0]: _changed(value.get(at[0], {}), at[1:], changes)}


def names(kind: Any) -> set[str]:
    """The fields of a TypedDict or of a pydantic model."""
    return (
        set(kind.model_fields)
        if hasattr(kind, "model_fields")
        else set(kind.__required_keys__ | kind.__optional_keys__)
    )


Q = [{"role": "user", "content": "q"}]
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
CHAT = {"model": "m", "messages": Q, "tools": [FUNCTION, {"type": "function", "function": {"name": "g"}}]}
CALL = {
    "role": "assistant",
    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}

RESPONSES = {"model": "m", "input": "q", "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}]}
MESSAGES = {"model": "m", "max_tokens": 9, "messages": Q, "tools": [{"name": "f", "input_schema": SCHEMA}]}
GEMINI = {
    "contents": [{"role": "user", "parts": [{"text": "q"}]}],
    "tools": [{"functionDeclarations": [{"name": "f", "parametersJsonSchema": SCHEMA}]}],
}
TEXT_FORMAT = {"type": "json_schema", "name": "x", "schema": SCHEMA}

OPENAI: dict[str, Decided] = {
    "model": Served("n"), "temperature": Served(0.5), "top_p": Served(0.5), "stream": Served(True), "user": Same("u"),
    "metadata": Same({"a": "b"}), "service_tier": Same("flex"), "safety_identifier": Same("s"),
    "prompt_cache_key": Same("k"),
    "prompt_cache_options": Same({"mode": "explicit"}), "prompt_cache_retention": Same("24h"),
    "moderation": Refused({"model": "x"}),
    "parallel_tool_calls": Served(False), "tool_choice": Served("none"), "tools": Served([]), "top_logprobs": Refused(2,
    0),
}  # fmt: skip

COMPLETIONS: dict[str, Decided] = {
    "frequency_penalty": Refused(0.5, 0), "presence_penalty": Refused(0.5, 0), "logit_bias": Refused({"1": 1}, {}),
    "seed": Served(3), "n": Served(2),
    "max_tokens": Served(5), "stop": Served("x"), "stream_options": Served({"include_usage": True,
    "include_obfuscation": True}),
}  # fmt: skip

TOP_OF_MESSAGES: dict[str, Decided] = {
    "model": Served("n"), "max_tokens": Served(5), "messages": Served([{"role": "user", "content": "r"}]),
    "system": Served("s"), "tools": Served([]),
    "tool_choice": Served({"type": "none"}), "stream": Served(True), "temperature": Served(0.5), "top_p": Served(0.5),
    "top_k": Served(3),
    "stop_sequences": Served(["x"]), "thread": Served({"type": "create"}),
    "output_config": Served({"format": {"type": "json_schema", "schema": SCHEMA}}),
    "output_format": Served({"type": "json_schema", "schema": SCHEMA}), "thinking": Served({"type": "adaptive",
    "display": "omitted"}, told=True),
    "metadata": Same({"user_id": "u"}), "service_tier": Same("standard_only"),
    "cache_control": Same({"type": "ephemeral"}),
    "diagnostics": Same({"previous_message_id": "msg_1"}), "inference_geo": Same("eu"),
    "billing_policy": Same({"type": "billing_policy", "bill_to": "self"}),
    "fallback_credit_token": Same("t"), "compaction": Refused({"type": "summarize"}), "container": Refused("c"),
    "speed": Refused("fast", "standard"),
    "context_management": Refused({"edits": [{"type": "compact_20260112"}]}, {"edits": []}),
    "mcp_servers": Refused([{"name": "x"}], []),
    "fallbacks": Refused([{"model": "x"}], "default"), "betas": Elsewhere(), "user_profile_id": Elsewhere(),
    "workspace_id": Elsewhere(),
}  # fmt: skip

PLACES: dict[str, Place] = {
    "chat": Place("chat/completions", CHAT, (), (chat_params.CompletionCreateParamsBase,
    chat_params.CompletionCreateParamsStreaming), {
        **OPENAI, **COMPLETIONS, "messages": Served([{"role": "user", "content": "r"}]),
        "audio": Refused({"voice": "x"}), "functions": Refused([{"name": "f"}], []),
        "function_call": Refused({"name": "f"}, "auto"), "logprobs": Served(True), "max_completion_tokens": Served(5),
        "modalities": Refused(["audio"], ["text"]),
        "prediction": Same({"type": "content", "content": "x"}), "reasoning_effort": Same("low"),
        "response_format": Served(FORMAT), "store": Same(True),
        "verbosity": Same("low"), "web_search_options": Refused({}),
    }),
    "chat: stream_options": Place("chat/completions", CHAT, ("stream_options",),
    (chat.ChatCompletionStreamOptionsParam,), {
        "include_usage": Served(True), "include_obfuscation": Same(True),
    }),
    "chat: tools": Place("chat/completions", CHAT, ("tools", 0), (chat.ChatCompletionFunctionToolParam,
    chat.ChatCompletionCustomToolParam), {
        "type": Refused("custom", "function"), "function": Served({"name": "h"}), "custom": Elsewhere(),
    }),
    "chat: functions": Place("chat/completions", CHAT, ("tools", 0, "function"), (shared_params.FunctionDefinition,), {
        "name": Served("h"), "description": Served("d"), "parameters": Served({}), "strict": Served(True),
    }),
    "chat: messages": Place("chat/completions", {"messages": [CALL, *Q]}, ("messages", 0), (
        chat.ChatCompletionAssistantMessageParam, chat.ChatCompletionUserMessageParam,
        chat.ChatCompletionSystemMessageParam,
        chat.ChatCompletionDeveloperMessageParam, chat.ChatCompletionToolMessageParam,
    ), {
        "role": Served("user"), "content": Served("x"), "name": Served("n"), "refusal": Served("no"),
        "tool_calls": Served([]), "tool_call_id": Elsewhere(),
        "audio": Refused({"id": "x"}), "function_call": Refused({"name": "f", "arguments": "{}"}),
    }),
    "completions": Place("completions", {"prompt": "q"}, (), (completion_create_params.CompletionCreateParamsBase,
    completion_create_params.CompletionCreateParamsStreaming), {
        **{name: OPENAI[name] for name in ("model", "temperature", "top_p", "stream", "user")}, **COMPLETIONS,
        "prompt": Served("r"), "echo": Served(True),
        "best_of": Refused(3, 1), "logprobs": Served(1), "suffix": Refused("x", ""),
    }),
    "responses": Place("responses", RESPONSES, (), (
        response_create_params.ResponseCreateParamsBase, response_create_params.ResponseCreateParamsStreaming,
        beta_response_params.ResponseCreateParamsBase, beta_response_params.ResponseCreateParamsStreaming,
    ), {
        **OPENAI, "input": Served("r"), "instructions": Served("s"), "max_output_tokens": Served(5),
        "store": Served(False), "text": Served({"format": TEXT_FORMAT}),
        "include": Served(["message.output_text.logprobs"]), "conversation": Refused("conv_x"),
        "previous_response_id": Refused("resp_x"),
        "background": Refused(True, False), "context_management": Refused([{"type": "compaction"}], []),
        "max_tool_calls": Refused(3), "prompt": Refused({"id": "x"}),
        "truncation": Refused("middle", "auto"), "multi_agent": Refused({"enabled": True}, {"enabled": False}),
        "betas": Elsewhere(),
        "reasoning": Same({"effort": "low"}), "stream_options": Same({"include_obfuscation": False}),
        "access_programs": Same({"cyber": "standard"}), "background_options": Same({"completion_window": "soonest"}),
        "image": Same({"context_compression": "auto"}),
    }),
    "responses: input_tokens": Place("responses/input_tokens", RESPONSES, (),
    (input_token_count_params.InputTokenCountParams,), {
        "model": Served("n"), "input": Served("r"), "instructions": Served("s"), "tools": Served([]),
        "tool_choice": Served("none"), "text": Served({"format": TEXT_FORMAT}),
        "parallel_tool_calls": Served(False), "conversation": Refused("conv_x"),
        "previous_response_id": Refused("resp_x"), "reasoning": Same({"effort": "low"}),
        "truncation": Same("auto"), "personality": Refused("friendly"),
    }),
    "responses: text": Place("responses", RESPONSES, ("text",), (responses.ResponseTextConfigParam,),
    {"format": Served(TEXT_FORMAT), "verbosity": Same("low")}),
    "responses: prompt_cache_options": Place("responses", RESPONSES, ("prompt_cache_options",),
    (response_create_params.PromptCacheOptions,), {
        "mode": Same("explicit"), "ttl": Same("30m"), "prewarm": Refused(True, False),
        "comparison_response_id": Refused("resp_x"),
    }),
    "chat: prompt_cache_options": Place("chat/completions", CHAT, ("prompt_cache_options",),
    (chat_params.PromptCacheOptions,), {"mode": Same("explicit"), "ttl": Same("30m")}),
    "responses: tools": Place("responses", RESPONSES, ("tools", 0), (responses.FunctionToolParam,), {
        "type": Refused("web_search", "function"), "name": Served("h"), "description": Served("d"),
        "parameters": Served({}), "strict": Served(True),
        "defer_loading": Refused(True, False), "allowed_callers": Refused(["programmatic"], ["direct"]),
        "async": Refused(True, False), "output_schema": Same(SCHEMA),
    }),
    "messages": Place("messages", MESSAGES, (), (
        beta_params.MessageCreateParamsBase, beta_params.MessageCreateParamsStreaming,
        beta_params.ParseMessageCreateParamsBase,
        message_create_params.MessageCreateParamsBase, message_create_params.MessageCreateParamsStreaming,
    ), TOP_OF_MESSAGES),
    "messages: count": Place("messages/count_tokens", MESSAGES, (), (beta_count_params.MessageCountTokensParams,
    message_count_tokens_params.MessageCountTokensParams), {
        **TOP_OF_MESSAGES, "compaction": Same({"type": "summarize"}),
    }),
    "messages: output_config": Place("messages", MESSAGES, ("output_config",), (beta.BetaOutputConfigParam,
    claude.OutputConfigParam), {
        "format": Served({"type": "json_schema", "schema": SCHEMA}), "effort": Same("low"),
        "task_budget": Same({"type": "tokens", "total": 9}),
    }),
    "messages: thinking": Place("messages", {**MESSAGES, "thinking": {"type": "enabled"}}, ("thinking",), (
        beta.BetaThinkingConfigEnabledParam, beta.BetaThinkingConfigAdaptiveParam, beta.BetaThinkingConfigDisabledParam,
    ), {
        "type": Refused("deep", "adaptive"), "budget_tokens": Same(2000), "display": Served("omitted", told=True),
        "block_binding": Same({}),
    }),
    "messages: tool_choice": Place("messages", {**MESSAGES, "tool_choice": {"type": "any"}}, ("tool_choice",), (
        beta.BetaToolChoiceAutoParam, beta.BetaToolChoiceAnyParam, beta.BetaToolChoiceToolParam,
        beta.BetaToolChoiceNoneParam,
    ), {
        "type": Served("auto"), "disable_parallel_tool_use": Served(True), "name": Elsewhere(),
    }),
    "messages: tools": Place("messages", MESSAGES, ("tools", 0), (beta.BetaToolParam, claude.ToolParam), {
        "type": Refused("bash_20250124", "custom"), "name": Served("h"), "description": Served("d"),
        "input_schema": Served({}), "strict": Served(True),
        "cache_control": Same({"type": "ephemeral"}), "eager_input_streaming": Same(True),
        "defer_loading": Served(True),
        "allowed_callers": Refused(["code_execution_20260120"], ["direct"]), "input_examples": Refused([{"x": "y"}],
        []),
    }),
    "messages: messages": Place("messages", {**MESSAGES, "messages": [{"role": "system", "content": "x"}, *Q]},
    ("messages", 0), (
        *get_args(beta.BetaMessageParam), *get_args(claude.MessageParam),
    ), {
        "role": Served("user"), "content": Served("y"), "clear_at": Refused("next_user_message", "never"),
        "output_config": Same({"effort": "low"}),
    }),
    "gemini": Place("models/m:generateContent", GEMINI, (), (), {
        "contents": Served("r"), "system_instruction": Served("s"), "tools": Served([]),
        "tool_config": Served({"functionCallingConfig": {"mode": "ANY"}}),
        "cached_content": Refused("cachedContents/x", ""), "continuation_token": Refused("x"),
        "generation_output_config": Refused({"x": 1}), "labels": Same({"a": "b"}),
        "safety_settings": Same([{"category": "x", "threshold": "BLOCK_NONE"}]),
        "model_armor_config": Same({"promptTemplateName": "x"}), "service_tier": Same("flex"),
        "store": Same(True), "automatic_continuation": Elsewhere(), "automatic_function_calling": Elsewhere(),
        "http_options": Elsewhere(),
        "should_return_http_response": Elsewhere(),
    }),
    "gemini: generationConfig": Place("models/m:generateContent", {**GEMINI,
    "generationConfig": {"responseMimeType": "application/json"}}, ("generationConfig",), (gemini.GenerationConfig,), {
        "temperature": Served(0.5), "top_p": Served(0.5), "top_k": Served(3), "candidate_count": Served(2),
        "max_output_tokens": Served(5), "seed": Served(3),
        "stop_sequences": Served(["x"]), "response_mime_type": Served("text/plain"),
        "response_schema": Served({"type": "OBJECT"}), "response_json_schema": Served(SCHEMA),
        "response_logprobs": Served(True), "logprobs": Refused(2, 0), "presence_penalty": Refused(0.5, 0),
        "frequency_penalty": Refused(0.5, 0),
        "thinking_config": Served({"includeThoughts": True}, told=True),
        "media_resolution": Same("MEDIA_RESOLUTION_LOW"), "response_modalities": Refused(["AUDIO"], ["TEXT"]),
        "speech_config": Refused({"languageCode": "en"}), "routing_config": Refused({"autoMode": {}}),
        "model_selection_config": Refused({"x": 1}),
        "audio_timestamp": Refused(True, False), "enable_affective_dialog": Refused(True, False),
        "enable_enhanced_civic_answers": Refused(True, False),
        "response_format": Refused([{"text": {}}], []), "translation_config": Refused({"x": 1}),
        "audio_transcription_config": Refused({"x": 1}),
    }),
    "gemini: generationConfig of a config": Place("models/m:generateContent", GEMINI, ("generationConfig",), (),
    {"image_config": Refused({"aspectRatio": "1:1"})}),
    "gemini: thinkingConfig": Place("models/m:generateContent", GEMINI, ("generationConfig", "thinkingConfig"),
    (gemini.ThinkingConfig,), {
        "include_thoughts": Served(True, told=True), "thinking_budget": Same(0), "thinking_level": Same("LOW"),
    }),
    "gemini: tools": Place("models/m:generateContent", GEMINI, ("tools", 0), (gemini.Tool,), {
        "function_declarations": Served([]), **{name: Refused({}) for name in (
            "code_execution", "computer_use", "enterprise_web_search", "exa_ai_search", "file_search", "google_maps",
            "google_search", "google_search_retrieval",
            "mcp_servers", "parallel_ai_search", "retrieval", "url_context",
        )},
    }),
    "gemini: functions": Place("models/m:generateContent", GEMINI, ("tools", 0, "functionDeclarations", 0),
    (gemini.FunctionDeclaration,), {
        "name": Served("h"), "description": Served("d"), "parameters": Elsewhere(),
        "parameters_json_schema": Served({"type": "object"}), "behavior": Refused("NON_BLOCKING", "BLOCKING"),
        "response": Same({"type": "OBJECT"}), "response_json_schema": Same(SCHEMA),
    }),
    "gemini: toolConfig": Place("models/m:generateContent", GEMINI, ("toolConfig",), (gemini.ToolConfig,), {
        "function_calling_config": Served({"mode": "ANY"}), "retrieval_config": Refused({"languageCode": "en"}, {}),
        "include_server_side_tool_invocations": Refused(True, False),
    }),
    "gemini: functionCallingConfig": Place("models/m:generateContent", GEMINI, ("toolConfig", "functionCallingConfig"),
    (gemini.FunctionCallingConfig,), {
        "mode": Served("ANY"), "allowed_function_names": Served(["f"]), "stream_function_call_arguments": Refused(True,
        False),
    }),
    "gemini: parts": Place("models/m:generateContent", GEMINI, ("contents", 0, "parts", 0), (gemini.Part,), {
        "text": Served("r"), "function_response": Served({"name": "f", "response": {}}), "function_call": Elsewhere(),
        "thought": Elsewhere(),
        **{name: Refused({}) for name in ("inline_data", "file_data", "executable_code", "code_execution_result",
        "tool_call", "tool_response")},
        **{name: Same({}) for name in (
            "audio_metadata", "audio_transcription", "document_metadata", "media_processing", "media_resolution",
            "part_metadata", "speech_metadata", "spreadsheet_metadata",
            "video_metadata", "thought_signature",
        )},
    }),
    "gemini: functionResponse": Place(
        "models/m:generateContent", {"contents": [{"role": "user", "parts": [{"functionResponse": {"name": "f"}}]}]},
        ("contents", 0, "parts", 0, "functionResponse"), (gemini.FunctionResponse,), {
            "id": Served("1"), "name": Served("h"), "response": Served({"x": "y"}), "parts": Refused([{"x": 1}], []),
            "will_continue": Refused(True, False), "scheduling": Same("SILENT"),
        },
    ),
    "gemini: functionCall": Place(
        "models/m:generateContent", {"contents": [{"role": "model", "parts": [{"functionCall": {"name": "f"}}]},
        *GEMINI["contents"]]},
        ("contents", 0, "parts", 0, "functionCall"), (gemini.FunctionCall,),
        {"id": Served("1"), "name": Served("h"), "args": Served({"x": "y"}),
        "partial_args": Refused([{"jsonPath": "x"}], []), "will_continue": Refused(True, False)},
    ),
}  # fmt: skip


def seen(request: WireRequest) -> tuple[Any, ...]:
    """All that a request asks for, but the record's copy of it. Tools are equal with and without ``strict``, and calls
    by any id: here they are not."""
    return (
        replace(request, asked={}),
        [tool.strict for tool in request.tools],
        [[call.id for call in each.tool_calls] for each in request.messages],
    )


@pytest.mark.parametrize("name", PLACES)
def test_every_field_of_the_clients_types_is_decided_on(name: str) -> None:
    place = PLACES[name]
    for kind in place.known_to:
        assert names(kind) <= place.fields.keys(), (
            f"nobody decided what {sorted(names(kind) - place.fields.keys())} of {kind.__name__} do"
        )


def test_every_field_of_geminis_config_is_decided_on() -> None:
    decided = {
        *PLACES["gemini"].fields,
        *PLACES["gemini: generationConfig"].fields,
        *PLACES["gemini: generationConfig of a config"].fields,
    }
    assert names(gemini.GenerateContentConfig) | names(gemini.GenerationConfig) <= decided


CASES = [(place, field) for place, each in PLACES.items() for field in each.fields]


@pytest.mark.parametrize(("place", "field"), CASES)
def test_a_field_does_what_was_decided(place: str, field: str) -> None:
    at, decided = PLACES[place], PLACES[place].fields[field]
    plain = at.read({})
    if isinstance(decided, Served):
        asked = at.read({field: decided.value})
        assert (seen(asked) != seen(plain)) is not decided.told
        assert asked.asked != plain.asked or not decided.told
    elif isinstance(decided, Same):
        assert seen(at.read({field: decided.value})) == seen(plain)
    elif isinstance(decided, Refused):
        with pytest.raises(CallError) as refused:
            at.read({field: decided.value})
        assert (
            refused.value.status in (400, 404) and at.written(field) in f"{refused.value.param} {refused.value.message}"
        )
        assert seen(at.read({field: decided.neutral})) == seen(plain)


BOOLEANS = [
    ("chat/completions", CHAT, (), ("parallel_tool_calls", "logprobs", "stream", "store", "return_token_ids")),
    ("chat/completions", CHAT, ("stream_options",), ("include_usage",)),
    ("chat/completions", CHAT, ("tools", 0, "function"), ("strict",)),
    ("completions", {"prompt": "q"}, (), ("echo", "stream", "return_token_ids")),
    ("completions", {"prompt": "q"}, ("stream_options",), ("include_usage",)),
    ("responses", RESPONSES, (), ("parallel_tool_calls", "store", "stream", "background", "return_token_ids")),
    ("responses", RESPONSES, ("tools", 0), ("strict", "defer_loading", "async")),
    ("messages", MESSAGES, (), ("stream",)),
    ("messages", MESSAGES, ("tools", 0), ("strict", "defer_loading")),
    ("messages", {**MESSAGES, "tool_choice": {"type": "auto"}}, ("tool_choice",), ("disable_parallel_tool_use",)),
    ("models/m:generateContent", GEMINI, ("generationConfig",), ("responseLogprobs", "audioTimestamp")),
    ("models/m:generateContent", GEMINI, ("generationConfig", "thinkingConfig"), ("includeThoughts",)),
    ("models/m:generateContent", GEMINI, ("toolConfig", "functionCallingConfig"), ("streamFunctionCallArguments",)),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "at", "fields"), BOOLEANS)
def test_booleans_are_booleans_on_every_wire(
    path: str, body: Any, at: tuple[str | int, ...], fields: tuple[str, ...]
) -> None:
    place = Place(path, body, at, (), {})
    for field, value in product(fields, ["false", "true", 0, 1, "", [], {}]):
        with pytest.raises(CallError) as refused:
            place.read({field: value})
        assert refused.value.status == 400 and field in str(refused.value.param), (field, value)


@pytest.mark.parametrize(
    ("path", "body", "fields"),
    [
        (
            "chat/completions",
            CHAT,
            ("model", "user", "reasoning_effort", "verbosity", "safety_identifier", "prompt_cache_key", "service_tier"),
        ),
        ("completions", {"prompt": "q"}, ("model", "user")),
        (
            "responses",
            RESPONSES,
            ("model", "user", "instructions", "safety_identifier", "prompt_cache_key", "service_tier"),
        ),
        ("messages", MESSAGES, ("model", "service_tier", "inference_geo")),
    ],
)
def test_strings_are_strings_on_every_wire(path: str, body: Any, fields: tuple[str, ...]) -> None:
    for field, value in product(fields, [3, True, ["x"], {"x": "y"}]):
        with pytest.raises(CallError) as refused:
            Place(path, body, (), (), {}).read({field: value})
        assert refused.value.status == 400 and refused.value.param == field, value


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("chat/completions", CHAT, "stream_options"), ("chat/completions", CHAT, "response_format"),
        ("chat/completions", CHAT, "metadata"),
        ("completions", {"prompt": "q"}, "stream_options"), ("completions", {"prompt": "q"}, "metadata"),
        ("responses", RESPONSES, "stream_options"), ("responses", RESPONSES, "text"), ("responses", RESPONSES,
        "reasoning"), ("responses", RESPONSES, "metadata"),
        ("messages", MESSAGES, "output_config"), ("messages", MESSAGES, "thinking"), ("messages", MESSAGES, "metadata"),
        ("messages", MESSAGES, "tool_choice"),
        ("messages", MESSAGES, "thread"), ("messages", MESSAGES, "context_management"),
        ("models/m:generateContent", GEMINI, "generationConfig"), ("models/m:generateContent", GEMINI, "toolConfig"),
    ],
)  # fmt: skip
def test_objects_are_objects_on_every_wire(path: str, body: Any, field: str) -> None:
    for value in ("x", 3, True, ["x"]):
        with pytest.raises(CallError) as refused:
            Place(path, body, (), (), {}).read({field: value})
        assert refused.value.status == 400 and str(refused.value.param).startswith(field), value
