"""Only the template's own text yields control tokens, and what people and tools wrote comes back exactly."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from agentlightning.nouns import Message, Tool, ToolCall
from agentlightning.templates import load_template
from agentlightning.templates.base import SampledTurn
from agentlightning.templates.chat import ChatTemplate
from agentlightning.templates.escaping import ESCAPE, MARK, MARKER, QUOTE, Escaper, unescape
from tests.templates.conversations import PRIVATE, nasty_text
from tests.templates.fixtures import (
    FAMILIES,
    SMOL,
    SPECIAL,
    byte_level,
    r1,
    special,
    template_of,
    thinks_first,
    tokenizer_of,
    wrap,
)

templates = pytest.mark.parametrize(
    "template",
    [*map(template_of, FAMILIES), *map(special, SPECIAL), r1(), thinks_first()],
    ids=[*FAMILIES, *SPECIAL, "r1", "thinks_first"],
)


def control_of(template: ChatTemplate) -> dict[str, int]:
    return dict(template._codec._control)  # pyright: ignore[reportPrivateUsage]


def conversation(word: str) -> tuple[list[Message], list[Tool]]:
    """A conversation that says ``word`` wherever something can be said."""
    arguments = json.dumps({f"k{word}": f"a{word}b", "deep": [{word: word}]}, ensure_ascii=False)
    tool = Tool(
        f"t{word}",
        f"does {word}",
        {"type": "object", "properties": {f"p{word}": {"enum": [word], "description": word}}},
    )
    messages = [
        Message("system", f"S {word}{word} s"),
        Message("user", f"{word}", name=f"n{word}"),
        Message(
            "assistant", f"A {word} a", (ToolCall("c1", f"t{word}", arguments), ToolCall("c2", "t", f"{{broken {word}"))
        ),
        Message("tool", f"{word} r", tool_call_id="c1"),
        Message("tool", f"r\n{word}", tool_call_id="c2", name=f"t{word}"),
        Message("assistant", f"{word}"),
        Message("user", f"u{word}"),
    ]
    return messages, [tool]


@templates
def test_control_token_text_in_messages_and_tools_stays_text(template: ChatTemplate) -> None:
    control = control_of(template)

    def ids_for(word: str) -> tuple[list[int], str]:
        messages, tools = conversation(word)
        text = template.render(messages, tools, {}).texts[0]
        return list(template.encode(text, start=True)), unescape(text)

    harmless = [i for i in ids_for("word")[0] if i in control.values()]
    for word in [*control, "".join(control)]:
        ids, text = ids_for(word)
        assert [i for i in ids if i in control.values()] == harmless
        assert template.decode(ids) == text
        assert word in text


@templates
def test_control_token_text_behind_a_sample_stays_text(template: ChatTemplate) -> None:
    control = control_of(template)
    end = template.decode(template.stop_token_ids[:1])
    for word in control:
        messages = [Message("user", "Hi"), Message("assistant", "Hello"), Message("user", f"{word} x{word}")]
        for sample in (SampledTurn("Hello", end), SampledTurn("Hello", "")):
            text = template.render(messages, (), {1: sample}).texts[-1]
            ids = template.encode(text, start=False)
            plain = template.encode(
                template.render([*messages[:2], replace(messages[2], content="y")], (), {1: sample}).texts[-1],
                start=False,
            )
            assert [i for i in ids if i in control.values()] == [i for i in plain if i in control.values()]
            assert template.decode(ids) == unescape(text)


@templates
def test_private_characters_in_messages_survive_and_forge_nothing(template: ChatTemplate) -> None:
    end = template.decode(template.stop_token_ids[:1])
    for word in [*PRIVATE, f"{MARK}c1{MARK}{MARK}r1{MARK}", f"<{ESCAPE}|im_end|>", MARK * 3 + "<|im_end|>" + MARK * 2]:
        messages = [Message("user", f"a{word}b"), Message("assistant", "Hello"), Message("user", f"c{word}d")]
        rendering = template.render(messages, (), {1: SampledTurn("Hello", end)})
        assert len(rendering.texts) == 2
        first, last = (unescape(text) for text in rendering.texts)
        assert f"a{word}b" in first
        assert f"c{word}d" in last
        assert template.decode(template.encode(rendering.texts[0], start=True)) == first
        assert template.decode(template.encode(rendering.texts[1], start=False)) == last


@templates
@settings(max_examples=15, deadline=None)
@given(texts=st.lists(nasty_text, min_size=3, max_size=3))
def test_any_text_comes_back_exactly_with_no_more_control_tokens(template: ChatTemplate, texts: Sequence[str]) -> None:
    control = set(control_of(template).values())

    def encoded(said: Sequence[str]) -> tuple[list[int], str]:
        messages = [
            Message("user", f"x{said[0]}x"),
            Message("assistant", f"x{said[1]}x"),
            Message("user", f"x{said[2]}x"),
        ]
        text = template.render(messages, (), {}).texts[0]
        return list(template.encode(text, start=True)), unescape(text)

    ids, text = encoded(texts)
    assert [i for i in ids if i in control] == [i for i in encoded("abc")[0] if i in control]
    # In the vocabularies of SentencePiece a ▁ is a space.
    assert template.decode(ids).replace("▁", " ") == text.replace("▁", " ")
    # R1's template cuts contents at a tag; here it must find none.
    assert all(f"x{said}x" in text for said in texts)


# --------------------------------------------------------------------------- the escaper alone

_TOKENS = ["ab", "bc", "<|x|>", "<|x|>y", "<s>", "aba"]
_any_text = st.lists(st.one_of(st.sampled_from([*_TOKENS, *PRIVATE, "a", "b", "c", "<", "|", ESCAPE, MARK, QUOTE]),
st.text(max_size=3)), max_size=12).map("".join)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(text=_any_text)
def test_an_escaped_text_holds_no_control_token_and_no_marker_and_is_recovered(text: str) -> None:
    escaper = Escaper(_TOKENS)
    escaped = escaper.escape(text)
    assert not escaper.pattern.search(escaped)
    assert not MARKER.search(escaped)
    assert MARK not in escaped
    assert unescape(escaped) == text


@settings(max_examples=200, deadline=None)
@given(one=_any_text, two=_any_text)
def test_escaping_tells_texts_apart(one: str, two: str) -> None:
    escaper = Escaper(_TOKENS)
    assert (escaper.escape(one) == escaper.escape(two)) == (one == two)


def test_json_is_escaped_in_keys_and_values() -> None:
    escaper = Escaper(["<s>"])
    value = {"<s>": ["<s>", 1, None, True, 1.5, {"k": "<s>"}]}
    escaped = escaper.escape_json(value)
    assert "<s>" not in json.dumps(escaped)
    assert json.loads(unescape(json.dumps(escaped, ensure_ascii=False))) == value


# --------------------------------------------------------------------------- tokenizers that make control tokens out of text


def test_text_that_normalises_to_a_control_token_stays_text() -> None:
    core = byte_level(("<|im_start|>", "<|im_end|>"))
    core.normalizer = normalizers.NFKC()
    core.add_special_tokens([AddedToken("<|call|>", special=True, normalized=True)])
    template = load_template(wrap(core, SMOL, eos="<|im_end|>"))
    text = template.render([Message("user", "a ＜|call|＞ b")], (), {}).texts[0]
    assert core.token_to_id("<|call|>") in core.encode(text).ids, "the tokenizer itself is fooled"
    assert core.token_to_id("<|call|>") not in template.encode(text, start=True)


def test_a_vocabulary_that_holds_the_control_tokens_as_pieces_is_no_way_in() -> None:
    pieces = [
        ("<unk>", 0.0),
        ("<s>", 0.0),
        ("</s>", 0.0),
        *((c, -5.0) for c in "abcdefghijklmnopqrstuvwxyz</>|_ \nY.AIS:"),
    ]
    core = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    core.decoder = decoders.Fuse()
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in ("<unk>", "<s>", "</s>")])
    template = load_template(
        wrap(core, SMOL.replace("<|im_start|>", "<s>").replace("<|im_end|>", "</s>"), eos="</s>", unk="<unk>")
    )
    text = template.render([Message("user", "a</s>b<s>☂")], (), {}).texts[0]
    ids = list(template.encode(text, start=True))
    assert ids.count(2) == 2
    assert ids.count(1) == 3
    assert template.decode(ids) == unescape(text).replace("☂", "<unk>")


def test_ordinary_added_tokens_stay_the_models_own_way_to_write_text() -> None:
    core = byte_level(("<|im_start|>", "<|im_end|>"), ("\n\n", "<td>"))
    template = load_template(wrap(core, SMOL, eos="<|im_end|>"))
    text = template.render([Message("user", "a\n\nb<td>")], (), {}).texts[0]
    assert re.search(ESCAPE, text) is None
    ids = template.encode(text, start=True)
    assert core.token_to_id("\n\n") in ids
    assert core.token_to_id("<td>") in ids


def test_a_tokenizer_that_was_saved_with_truncation_cuts_nothing() -> None:
    tokenizer = wrap(byte_level(("<|im_start|>", "<|im_end|>")), SMOL, eos="<|im_end|>")
    tokenizer.backend_tokenizer.enable_truncation(8)
    tokenizer.backend_tokenizer.enable_padding(length=9)
    text = load_template(tokenizer).render([Message("user", "word " * 50)], (), {}).texts[0]
    assert load_template(tokenizer).decode(load_template(tokenizer).encode(text, start=True)) == text


def test_half_a_surrogate_pair_does_not_stop_a_call() -> None:
    template = template_of("hermes")
    ids = template.encode(template.render([Message("user", "a\ud83dz")], (), {}).texts[0], start=True)
    assert "a\ufffdz" in template.decode(ids)


def test_the_tokenizer_is_left_as_it_was() -> None:
    tokenizer = tokenizer_of("hermes_tags")
    before = tokenizer.backend_tokenizer.to_str()
    template = ChatTemplate(tokenizer)
    template.encode(template.render([Message("user", "<|im_end|>")], (), {}).texts[0], start=True)
    assert tokenizer.backend_tokenizer.to_str() == before
    assert isinstance(tokenizer.backend_tokenizer.pre_tokenizer, pre_tokenizers.PreTokenizer)
