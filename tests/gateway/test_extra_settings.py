"""What other servers take beside an API's own fields: on every wire honoured, or refused by name, and never ignored."""

from __future__ import annotations

import json
import logging
from typing import Any

import aiohttp
import pytest

from agentlightning.gateway.kept_replies import KeptReplies
from agentlightning.gateway.served import Served
from agentlightning.gateway.wires import find_wire, read_request
from agentlightning.gateway.wires.base import CallError, OutputFormat, Target, WireRequest
from agentlightning.gateway.wires.extra_settings import _OWN, MAX_KWARGS, REFUSED
from agentlightning.gateway.wires.unserved import Unserved
from agentlightning.templates import load_template
from tests.gateway.conftest import Build
from tests.templates.fixtures import CHATML, THINKING, byte_level, wrap

Q = [{"role": "user", "content": "q"}]
BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": Q},
    "responses": {"input": "q"},
    "messages": {"messages": Q, "max_tokens": 9},
    "models/m:generateContent": {"contents": [{"role": "user", "parts": [{"text": "q"}]}]},
    "completions": {"prompt": "q"},
}
SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}}}
OTHER = {
    "documents": [{"text": "x"}],
    "transforms": ["middle-out"],
    "logit_bias": {"5": 100},
    "stop_regex": "x",
    "options": {"num_ctx": 9},
}


def read(path: str, more: dict[str, Any]) -> WireRequest:
    wire = find_wire(path)
    assert wire is not None and not isinstance(wire, Unserved)
    body = {**BODIES[path], **more}
    return read_request(wire, Target("POST", path), body, json.dumps(body).encode(), KeptReplies())


def refusal(path: str, more: dict[str, Any]) -> CallError:
    with pytest.raises(CallError) as refused:
        read(path, more)
    assert refused.value.status == 400
    return refused.value


def own(path: str) -> frozenset[str]:
    wire = find_wire(path)
    assert wire is not None
    return _OWN.get(wire.name, frozenset())


@pytest.mark.parametrize("path", BODIES)
def test_every_setting_that_cannot_be_honoured_is_refused_by_name_and_its_neutral_values_pass(path: str) -> None:
    plain = read(path, {})
    for name, (neutral, _) in REFUSED.items():
        if name in own(path):
            continue
        value = OTHER.get(
            name,
            True
            if False in neutral
            else False
            if True in neutral
            else [5]
            if [] in neutral
            else {"a": 1}
            if {} in neutral
            else 7,
        )
        for body, where in (({name: value}, name), ({"extra_body": {name: value}}, f"extra_body.{name}")):
            error = refusal(path, body)
            assert name in f"{error.param} {error.message}" and (
                error.param == where or path == "models/m:generateContent"
            ), (
                name,
                error.message,
            )
        for each in (None, *neutral):
            assert read(path, {name: each}) == read(path, {"extra_body": {name: each}}) == plain, (name, each)


@pytest.mark.parametrize("config", ["generationConfig", "generation_config"])
def test_what_is_asked_inside_geminis_settings_is_honoured_or_refused_by_name_as_at_the_top(config: str) -> None:
    path = "models/m:generateContent"
    for name in (
        "repetition_penalty",
        "min_p",
        "min_tokens",
        "stop_token_ids",
        "structural_tag",
        "truncate_prompt_tokens",
    ):
        assert name in refusal(path, {config: {name: [5] if name == "stop_token_ids" else 5}}).message
    assert read(path, {config: {"guided_choice": ["a"]}}).output == OutputFormat(choice=("a",))
    assert read(path, {config: {"chat_template_kwargs": {"enable_thinking": False}}}).template_kwargs == {
        "enable_thinking": False
    }
    assert read(path, {config: {"min_p": 0, "presence_penalty": 0, "presencePenalty": 0}}) == read(
        path, {config: {"presencePenalty": 0}}
    )


FORMS: list[tuple[dict[str, Any], OutputFormat]] = [
    ({"guided_json": SCHEMA}, OutputFormat(SCHEMA)),
    ({"guided_json": json.dumps(SCHEMA)}, OutputFormat(SCHEMA)),
    ({"json_schema": SCHEMA}, OutputFormat(SCHEMA)),
    ({"format": SCHEMA}, OutputFormat(SCHEMA)),
    ({"format": "json"}, OutputFormat()),
    ({"guided_json_object": True}, OutputFormat()),
    ({"structured_outputs": {"json": SCHEMA, "regex": None}}, OutputFormat(SCHEMA)),
    ({"structured_outputs": {"json_object": True, "disable_any_whitespace": True}}, OutputFormat()),
    ({"structured_outputs": {"regex": "a+"}}, OutputFormat(regex="a+")),
    ({"structured_outputs": {"choice": ["a", "b"]}}, OutputFormat(choice=("a", "b"))),
    ({"structured_outputs": {"grammar": 'start: "a"'}}, OutputFormat(grammar='start: "a"')),
    ({"guided_regex": "a+"}, OutputFormat(regex="a+")),
    ({"regex": "a+"}, OutputFormat(regex="a+")),
    ({"guided_choice": ["a", "b", "a"]}, OutputFormat(choice=("a", "b"))),
    ({"guided_grammar": 'root ::= "a"'}, OutputFormat(grammar='root ::= "a"')),
    ({"ebnf": 'root ::= "a"'}, OutputFormat(grammar='root ::= "a"')),
    ({"grammar": 'root ::= "a"'}, OutputFormat(grammar='root ::= "a"')),
    ({"grammar": {"type": "regex", "value": "a+"}}, OutputFormat(regex="a+")),
    ({"grammar": {"type": "json", "value": SCHEMA}}, OutputFormat(SCHEMA)),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, OutputFormat(SCHEMA)),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
        OutputFormat(SCHEMA),
    ),
    ({"response_format": {"type": "json_object"}}, OutputFormat()),
]


@pytest.mark.parametrize("path", BODIES)
def test_every_spelling_of_a_format_is_the_same_on_every_wire(path: str) -> None:
    for body, wanted in FORMS:
        assert read(path, body).output == wanted, body
        if "response_format" not in body or path != "chat/completions":
            assert read(path, {"extra_body": body}).output == wanted, body
    for nothing in (
        {"structured_outputs": {}},
        {"guided_choice": []},
        {"format": ""},
        {"guided_json": None},
        {"response_format": {"type": "text"}},
    ):
        assert read(path, nothing).output is None


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"guided_json": "{"}, "guided_json is no JSON"), ({"guided_json": 3}, "guided_json must be a JSON schema"),
        ({"regex": 3}, "regex must be a regular"),
        ({"guided_choice": [1]}, "guided_choice must be a list "
                                 "of texts"), ({"guided_choice": "a"}, "guided_choice must be"),
        ({"grammar": {"type": "x"}}, "grammar must be of type json or regex"), ({"guided_json": SCHEMA, "regex": "a"},
        "guided_json and regex both say"),
        ({"structured_outputs": {"structural_tag": {}}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"new": 1}}, "structured_outputs.new"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "has regex and choice"), ({"structured_outputs": "x"},
        "must be an object"),
        ({"extra_body": 3}, "extra_body must be an object"), ({"chat_template_kwargs": 3},
        "chat_template_kwargs must be an object"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"), ({"enable_thinking": "no"},
        "enable_thinking must be true or false"),
        ({"chat_template_kwargs": {"x": "y" * MAX_KWARGS}}, "larger than 16 KB"),
        ({"chat_template_kwargs": {"x": json.loads("[" * 90 + "]" * 90)}}, "levels deep"),
        ({"response_format": {"type": "structural_tag"}}, "response_format must be of type"),
    ],
)  # fmt: skip
def test_what_is_none_is_refused_by_name(path: str, body: dict[str, Any], says: str) -> None:
    assert says in refusal(path, body).message


async def test_a_refusal_has_the_wires_own_shape(build: Build) -> None:
    visit = await (await build()).open()
    shapes = {"messages": "invalid_request_error", "models/m:generateContent": "INVALID_ARGUMENT"}
    async with aiohttp.ClientSession() as client:
        for path, body in BODIES.items():
            async with client.post(f"{visit.endpoint.base_url}/{path}", json={**body, "min_p": 0.1}) as got:
                told = await got.text()
                assert (got.status, "min_p=0.1 is not supported: use top_p or top_k" in told) == (400, True)
                assert shapes.get(path, "unsupported_parameter") in told
    assert len(await visit.calls()) == len(BODIES), "refusals are recorded"


# --------------------------------------------------------------------------- chat_template_kwargs

SWITCHED = THINKING.replace(
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}",
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' + ('<think>\n\n</think>\n\n' if enable_thinking is "
    "defined and not enable_thinking else '') }}"
    "{%- if note is defined %}{{- note }}{%- endif %}",
)
assert SWITCHED != THINKING


def switched() -> Any:
    return load_template(
        wrap(byte_level(CHATML, ("<think>", "</think>", "<tool_call>", "</tool_call>")), SWITCHED, eos="<|im_end|>")
    )


def test_every_wire_takes_them_in_every_spelling() -> None:
    off = {"enable_thinking": False}
    for path in BODIES:
        if path == "completions":
            assert "goes through no chat template" in refusal(path, {"chat_template_kwargs": off}).message
            continue
        for body in (
            {"chat_template_kwargs": off},
            off,
            {"extra_body": {"chat_template_kwargs": off}},
            {"extra_body": off},
        ):
            request = read(path, body)
            assert request.template_kwargs == off == request.asked["chat_template_kwargs"]
        assert read(path, {"chat_template_kwargs": {}}) == read(path, {"enable_thinking": None}) == read(path, {})


async def test_they_change_the_prompt_are_continued_under_the_same_values_and_branch_under_others(build: Build) -> None:
    template = switched()
    house = await build(template=template, script=["One.", "Two.", "Three.", "Four."])
    visit = await house.open()
    off: dict[str, Any] = {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}
    history: list[dict[str, Any]] = [{"role": "user", "content": "q"}]
    for more in (off, {"extra_body": {"enable_thinking": False}}, {}, {}):
        history.append({"role": "assistant", "content": (await visit.ask(history, **more)).choices[0].message.content})
        history.append({"role": "user", "content": "next"})
    calls = await visit.calls()
    assert [call.branch for call in calls] == ["root", "continued", "kwargs_changed", "continued"]
    prompts = [await visit.path_ids(call.prompt_node) for call in calls]
    assert template.decode(prompts[0]).endswith("assistant\n<think>\n\n</think>\n\n") and template.decode(
        prompts[2]
    ).endswith("assistant\n")
    first = await visit.path_ids(calls[0].samples[0].node)
    assert prompts[1][: len(first)] == first
    assert calls[0].asked["chat_template_kwargs"] == {"enable_thinking": False}


async def test_a_value_never_becomes_a_control_token(build: Build) -> None:
    house = await build(template=switched())
    visit = await house.open()
    await visit.ask("q", extra_body={"chat_template_kwargs": {"note": "<|im_end|>"}})
    prompt = house.engine.requests[0].prompt_ids.tolist()
    assert house.template.decode(prompt).endswith("<|im_end|>") and prompt.count(house.template.stop_token_ids[0]) == 1


async def test_a_key_that_the_template_does_not_take_changes_nothing_and_is_warned_of_once(
    build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    house = await build(template=switched())
    visit = await house.open()
    with caplog.at_level(logging.WARNING, logger="agentlightning"):
        for more in (
            {},
            {"extra_body": {"chat_template_kwargs": {"thinking": True}}},
            {"extra_body": {"chat_template_kwargs": {"thinking": False}}},
        ):
            await visit.ask("q", model="main", **more)
    one, two, three = (request.prompt_ids for request in house.engine.requests)
    assert one == two == three
    assert [record.getMessage() for record in caplog.records] == [
        "chat_template_kwargs.thinking: the chat template of 'main' takes no 'thinking', and renders as without it"
    ]


async def test_tokens_are_counted_under_them(build: Build) -> None:
    visit = await (await build(template=switched())).open()
    counts = []
    async with aiohttp.ClientSession() as client:
        for more in ({}, {"enable_thinking": False}):
            async with client.post(
                f"{visit.endpoint.base_url}/messages/count_tokens", json={"messages": Q, "chat_template_kwargs": more}
            ) as got:
                counts.append((await got.json())["input_tokens"])
    assert counts[1] > counts[0]


def test_only_so_many_variants_of_a_template_are_kept() -> None:
    template = switched()
    assert template.with_kwargs({"enable_thinking": False}) is template.with_kwargs({"enable_thinking": False})
    assert template.with_kwargs({"thinking": 1}) is template
    for i in range(100):
        template.with_kwargs({"note": str(i)})
    assert len(template._variants._made) == 32
    assert Served("main", None, template).with_kwargs({}, None).template is template  # type: ignore[arg-type]
