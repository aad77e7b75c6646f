"""Models and tokenizers small enough for any test, made from nothing: no download, a few milliseconds, the same bits
for the same seed.

``tiny_tokenizer`` and ``tiny_model`` are a byte-level vocabulary under a ChatML template that renders tools (Hermes
style), and a randomly initialised 2-layer Llama (90k parameters). ``letters_tokenizer`` and ``letters_model`` are the
learning task: 40 tokens, 79k parameters, and "answer with the letter you were shown", which policy gradients solve in
seconds.

The tokenizers do without torch, so that tests of templates and wires run where it is not installed.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

if TYPE_CHECKING:
    import torch
    from transformers import LlamaForCausalLM

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CONTEXT = 2048

MERGES = (("Ċ", "Ċ"), ("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("i", "n"), ("l", "l"), ("o", "o"), ("a", "n"), (">", "Ċ"))
"""A few merges (Ġ is the space, Ċ the newline): with them a sample need not be canonical, and text glued at a border
may tokenise otherwise."""

CHATML = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages and messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- 'Functions you can call, one JSON object a line:\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
{{- '\\n</tools>\\nTo call one, write <tool_call>{"name": NAME, "arguments": OBJECT}</tool_call>.<|im_end|>\\n' }}
{%- elif messages and messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'system' and loop.first %}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{%- if message.content or not loop.first %}{{- '\\n' }}{%- endif %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

PLAIN_CHATML = """\
{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
"""Without tools: what has to be rendered as text by whoever offers them."""

LETTERS = "abcdefgh"
"""The letters that the learning task shows."""


def tiny_tokenizer(
    merges: Sequence[tuple[str, str]] = (), template: str = CHATML, context: int = CONTEXT
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer: 256 bytes, three control tokens, and a token per merge (``MERGES`` for some). Its end
    of turn is <|im_end|>."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*SPECIALS, *alphabet, *(a + b for a, b in merges)])}
    core = Tokenizer(models.BPE(vocab=vocab, merges=list(merges)))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    return _wrap(core, template, context)


def letters_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of 40 tokens, one per character: lower-case letters, space, newline, 0 to 7; anything else is
    <unk>."""
    characters = [*string.ascii_lowercase, " ", "\n", *"01234567"]
    vocab = {token: i for i, token in enumerate([*SPECIALS, "<unk>", *characters])}
    core = Tokenizer(models.WordLevel(vocab=vocab, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    core.decoder = decoders.Fuse()
    return _wrap(core, PLAIN_CHATML)


def _wrap(core: Tokenizer, template: str, context: int = CONTEXT) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
        model_max_length=context,
    )
    tokenizer.chat_template = template
    return tokenizer


def tiny_model(
    seed: int = 0, dtype: torch.dtype | None = None, vocab_size: int = 272, context: int = CONTEXT
) -> LlamaForCausalLM:
    """A 2-layer Llama of hidden size 64 (91k parameters) on the CPU, float32, in evaluation mode; its context holds
    ``context`` tokens.

    The same seed gives the same weights whatever was drawn before, and leaves torch's own generator as it was. As in
    many released models the vocabulary is padded: ids from ``len(tokenizer)`` up can be sampled and have no text.
    """
    return _llama(seed, dtype, vocab_size, tie=True, context=context)


def letters_model(seed: int = 0, dtype: torch.dtype | None = None) -> LlamaForCausalLM:
    """The same for ``letters_tokenizer``: 40 tokens, 79k parameters."""
    return _llama(seed, dtype, 40, tie=False)


def _llama(
    seed: int, dtype: torch.dtype | None, vocab_size: int, *, tie: bool, context: int = CONTEXT
) -> LlamaForCausalLM:
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    end = SPECIALS.index("<|im_end|>")
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        tie_word_embeddings=tie,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=0)
    return model.to(dtype or torch.float32).eval()


def save_tiny(folder: str | Path, seed: int = 0, dtype: torch.dtype | None = None, context: int = CONTEXT) -> Path:
    """Writes the tiny model and its tokenizer as a Hugging Face folder and returns it."""
    tiny_model(seed, dtype, context=context).save_pretrained(folder)
    tiny_tokenizer(context=context).save_pretrained(folder)
    return Path(folder)


def save_letters(folder: str | Path, seed: int = 0, dtype: torch.dtype | None = None) -> Path:
    """Writes the letters model and its tokenizer as a Hugging Face folder and returns it."""
    letters_model(seed, dtype).save_pretrained(folder)
    letters_tokenizer().save_pretrained(folder)
    return Path(folder)


def letter_tasks(count: int = len(LETTERS)) -> list[dict[str, str]]:
    """Tasks ``{"letter": "a"}``, in turn over ``LETTERS``."""
    return [{"letter": LETTERS[i % len(LETTERS)]} for i in range(count)]


def letter_reward(answer: str, letter: str) -> float:
    """1.0 where the answer begins with the letter that was shown."""
    return float(answer.startswith(letter))
