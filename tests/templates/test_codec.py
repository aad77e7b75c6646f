"""Text to ids and back, a piece of a prompt at a time, for byte-level and SentencePiece-like tokenizers."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentlightning.nouns import Message
from agentlightning.templates import load_template
from agentlightning.templates.chat import ChatTemplate
from agentlightning.templates.escaping import unescape
from tests.templates.conversations import plain_text
from tests.templates.fixtures import FAMILIES, INST, MISTRAL, SMOL, byte_level, metaspace, template_of, wrap

every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


@every_family
def test_bos_comes_from_the_template_alone(family) -> None:
    template = template_of(family.name)
    tokenizer = family.make()
    text = template.render([Message("user", "Hi")], (), {}).texts[0]
    ids = list(template.encode(text, start=True))
    if tokenizer.bos_token:
        assert ids.count(tokenizer.bos_token_id) == 1
        if tokenizer("").input_ids:
            assert tokenizer(text).input_ids.count(tokenizer.bos_token_id) == 2, (
                "the tokenizer itself would add another"
            )
    assert ids == tokenizer(text, add_special_tokens=False).input_ids


@every_family
@settings(max_examples=15, deadline=None)
@given(said=st.lists(plain_text, min_size=2, max_size=2))
def test_text_behind_a_control_token_encodes_as_the_tail_of_the_whole(family, said: list[str]) -> None:
    template = template_of(family.name)
    text = template.render(
        [Message("user", said[0]), Message("assistant", "x"), Message("user", said[1])], (), {}
    ).texts[0]
    cut = text.rindex(family.end)
    whole = list(template.encode(text, start=True))
    for at in (cut, cut + len(family.end)):
        head, tail = list(template.encode(text[:at], start=True)), list(template.encode(text[at:], start=False))
        assert head + tail == whole


@every_family
@settings(max_examples=15, deadline=None)
@given(text=plain_text)
def test_decoding_is_the_inverse_of_encoding(family, text: str) -> None:
    template = template_of(family.name)
    for start in (False, True):
        rendered = template.render([Message("user", f"a{text}z")], (), {}).texts[0]
        assert template.decode(template.encode(rendered, start=start)) == unescape(rendered)


@cache
def llama2() -> ChatTemplate:
    tokenizer = wrap(metaspace(INST, bos="<s>", style="legacy"), MISTRAL, eos="</s>", bos="<s>", unk="<unk>")
    template = load_template(tokenizer)
    assert isinstance(template, ChatTemplate)
    return template


@pytest.mark.parametrize("name", ["mistral", "llama2"])
def test_a_samples_leading_space_is_kept(name: str) -> None:
    template = llama2() if name == "llama2" else template_of(name)
    ids = list(template.encode("Hello there</s>", start=True))
    assert template.decode(ids) == " Hello there</s>"
    assert template.sampled_turn(ids) == template.sampled_turn(ids[:-1]).__class__(" Hello there", "</s>")


def test_a_prefix_space_belongs_to_the_start_alone() -> None:
    template = template_of("mistral")
    assert template.decode(template.encode("use", start=True)) == " use"
    assert template.decode(template.encode("use", start=False)) == "use"


def test_a_tokenizer_that_takes_spaces_behind_a_control_token_does_so_in_every_piece() -> None:
    from tokenizers import AddedToken

    core = byte_level(("<|im_start|>",))
    core.add_special_tokens([AddedToken("<|im_end|>", special=True, normalized=False, rstrip=True)])
    template = load_template(wrap(core, SMOL, eos="<|im_end|>"))
    text = template.render(
        [Message("user", "a"), Message("assistant", "b"), Message("user", "c <|im_start|>")], (), {}
    ).texts[0]
    plain = template.render([Message("user", "a"), Message("assistant", "b"), Message("user", "c")], (), {}).texts[0]
    at = plain.index("b<|im_end|>") + len("b<|im_end|>")
    assert list(template.encode(plain, start=True)) == core.encode(plain).ids
    assert (
        list(template.encode(plain[:at], start=True)) + list(template.encode(plain[at:], start=False))
        == core.encode(plain).ids
    )
    escaped = list(template.encode(text, start=True))
    assert escaped[: len(core.encode(plain[:at]).ids)] == core.encode(plain[:at]).ids


def test_a_template_without_control_tokens_works() -> None:
    plain = (
        "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ "
        "'assistant:' }}{% endif %}"
    )
    core = byte_level(())
    tokenizer = wrap(core, plain, eos=None)  # pyright: ignore[reportArgumentType]
    template = load_template(tokenizer, stop_token_ids=[7])
    text = template.render([Message("user", "Hi")], (), {}).texts[0]
    assert text == "user: Hi\nassistant:"
    assert template.decode(template.encode(text, start=True)) == text
    assert template.stop_token_ids == (7,)


def test_ids_without_a_text_are_nothing() -> None:
    template = template_of("hermes")
    assert template.decode([10**6]) == ""
    assert template.decode([]) == ""


# --------------------------------------------------------------------------- byte-level vocabularies


@pytest.mark.parametrize("name", ["smol", "hermes_tags", "llama3", "deepseek_v3", "mistral_v13", "gemma", "mistral"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_ids_decode_as_the_tokenizer_decodes_them_whole_or_in_pieces(name: str, data: st.DataObject) -> None:
    """Broken characters, control tokens and ids without a text among them."""
    template = template_of(name)
    core = FAMILIES[name].make().backend_tokenizer
    ids = data.draw(st.lists(st.integers(0, core.get_vocab_size() + 3), max_size=20))
    before = [template.stop_token_ids[0]]
    expected = core.decode(before + ids, skip_special_tokens=False)[
        len(core.decode(before, skip_special_tokens=False)) :
    ]
    assert template.decode(ids) == expected
    decoder = template._codec.decoder()  # pyright: ignore[reportPrivateUsage]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=5)))
    pieces = [decoder.feed(ids[a:b]) for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]
    assert "".join([*pieces, decoder.finish()]) == expected


def test_a_token_outside_the_byte_alphabet_is_its_own_text() -> None:
    core = byte_level(("<|im_start|>", "<|im_end|>", "<｜é▁｜>"), ("\n\n\n", "é"))
    template = load_template(wrap(core, SMOL, eos="<|im_end|>"))
    for token in ("<｜é▁｜>", "\n\n\n", "é"):
        ids = [core.token_to_id(token)]
        assert template.decode(ids) == core.decode(ids, skip_special_tokens=False)
