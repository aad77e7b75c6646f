"""The models that other tests stand on are what they are said to be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.tiny import MERGES, letters_model, letters_tokenizer, save_tiny, tiny_model, tiny_tokenizer

PLAIN, MERGED = tiny_tokenizer(), tiny_tokenizer(MERGES)


def test_the_same_seed_gives_the_same_bits_and_leaves_torch_alone():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = tiny_model(3)
    torch.rand(7)
    second, other = tiny_model(3), tiny_model(4)
    assert all(
        torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    )
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)
    torch.set_rng_state(state)
    tiny_model()
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("model", "parameters"), [(tiny_model, 91_456), (letters_model, 79_168)])
def test_they_are_tiny(model, parameters: int):
    assert sum(p.numel() for p in model().parameters()) == parameters


def test_a_saved_one_loads_as_any_model_does(tmp_path: Path):
    folder = save_tiny(tmp_path / "tiny", seed=1)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    assert torch.equal(model.lm_head.weight, tiny_model(1).lm_head.weight)
    assert (tokenizer.eos_token, model.generation_config.eos_token_id) == ("<|im_end|>", tokenizer.eos_token_id)
    assert tokenizer.chat_template == PLAIN.chat_template


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_every_text_survives_the_tokenizers(text: str):
    for tokenizer in (PLAIN, MERGED):
        ids = tokenizer(text, split_special_tokens=True)["input_ids"]
        assert tokenizer.decode(ids) == text


def test_letters_are_one_token_each():
    tokenizer = letters_tokenizer()
    assert len(tokenizer) == 40
    assert [tokenizer.decode([i]) for i in tokenizer("abc 7\n")["input_ids"]] == ["a", "b", "c", " ", "7", "\n"]
