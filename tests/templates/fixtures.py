"""Chat templates in the manner of the public model families, written for these tests, and small tokenizers to go with
them.

Each `Family` says what its template is expected to be found to do, and how a model of it would write an assistant turn.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from agentlightning.nouns import Message, Tool, ToolCall
from agentlightning.templates import load_template
from agentlightning.templates.chat import ChatTemplate
from agentlightning.templates.formats import FORMATS
from tests.templates.more_templates import (
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    FUNCTION_GEMMA,
    GEMMA4,
    GLM,
    HARMONY,
    MISTRAL_V13,
    PHI4,
    QWEN_CODER,
)

# --------------------------------------------------------------------------- templates

SMOL = """\
{%- for message in messages %}
{%- if loop.first and message['role'] != 'system' %}{{ '<|im_start|>system\nYou are small.<|im_end|>\n' }}{% endif %}
{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

_QWEN_HEAD = """\
{%- set has_system = messages[0].role == 'system' %}
{%- if tools %}
{{- '<|im_start|>system\n' + (messages[0].content + '\n\n' if has_system else '') + 'Functions:\n<tools>' }}
{%- for tool in tools %}{{- '\n' + (tool | tojson) }}{%- endfor %}
{{- '\n</tools>\nWrite <tool_call>\\n{"name": NAME, "arguments": OBJECT}\\n</tool_call><|im_end|>\n' }}
{%- elif has_system %}
{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant\n' }}"""

_QWEN_TAIL = """
{%- for call in message.tool_calls or [] %}
{%- if message.content or not loop.first %}{{- '\n' }}{%- endif %}
{{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}"""

HERMES = (
    _QWEN_HEAD
    + "{{- message.content }}"
    + _QWEN_TAIL
    + "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)

_THINKING = """
{%- set thought = message.reasoning_content or '' %}
{%- if loop.index0 > ns.last and (loop.last or thought) %}
{{- '<think>\n' + thought.strip('\n') + '\n</think>\n\n' + message.content.lstrip('\n') }}
{%- else %}{{- message.content }}
{%- endif %}"""

THINKING = (
    _QWEN_HEAD + _THINKING + _QWEN_TAIL + "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
"""Reasoning behind the last user turn stays, earlier reasoning goes."""

THINKS_FIRST = (
    _QWEN_HEAD
    + _THINKING
    + _QWEN_TAIL
    + "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n<think>\n' }}{%- endif %}"
)

R1 = """\
{{- bos_token }}
{%- for message in messages %}
{%- if message['role'] == 'system' %}{{- message['content'] }}
{%- elif message['role'] == 'user' %}{{- '<|User|>' + message['content'] }}
{%- elif message['role'] == 'assistant' %}{{- '<|Assistant|>' + message['content'].split('</think>')[-1] + eos_token }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|Assistant|><think>\n' }}{%- endif %}"""
"""Drops all earlier reasoning, and every tool message in silence."""

LLAMA3 = """\
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system = '' %}{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\n' + ('Environment: ipython\n' if tools else '') + system + '<|eot_id|>' }}
{%- if tools %}
{%- if not messages %}{{- raise_exception('Tools need a user message') }}{%- endif %}
{{- '<|start_header_id|>user<|end_header_id|>\n\nFunctions:\n\n' }}
{%- for tool in tools %}{{- (tool | tojson(indent=4)) + '\n\n' }}{%- endfor %}
{{- (messages[0]['content'] | trim) + '<|eot_id|>' }}
{%- set messages = messages[1:] %}
{%- endif %}
{%- for message in messages %}
{%- if message.tool_calls %}
{%- if message.tool_calls | length != 1 %}{{- raise_exception('One tool call at a time') }}{%- endif %}
{%- set call = message.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' + call.name + '", "parameters": ' + (call.arguments | tojson) + '}<|eot_id|>' }}
{%- elif message.role == 'tool' %}
{{- '<|start_header_id|>ipython<|end_header_id|>\n\n' + (message.content | tojson) + '<|eot_id|>' }}
{%- else %}
{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + (message['content'] | trim) + '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"""

MISTRAL = """\
{%- if messages[0].role == 'system' %}{%- set system = messages[0].content %}{%- set turns = messages[1:] %}
{%- else %}{%- set turns = messages %}{%- endif %}
{%- set ns = namespace(n=0) %}
{%- for message in turns %}
{%- if message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) %}
{%- if (message.role == 'user') != (ns.n % 2 == 0) %}{{- raise_exception('user and assistant have to alternate') }}{%- endif %}
{%- set ns.n = ns.n + 1 %}
{%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in turns %}
{%- if message.role == 'user' %}
{%- if tools and loop.last %}{{- '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{%- endif %}
{{- '[INST] ' + (system + '\n\n' if loop.first and system is defined else '') + message.content + '[/INST]' }}
{%- elif message.tool_calls %}
{{- '[TOOL_CALLS] [' }}
{%- for call in message.tool_calls %}
{{- '{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}' }}
{%- if not loop.last %}{{- ', ' }}{%- endif %}
{%- endfor %}
{{- ']' + eos_token }}
{%- elif message.role == 'assistant' %}{{- ' ' + (message.content | trim) + eos_token }}
{%- elif message.role == 'tool' %}{{- '[TOOL_RESULTS]' + message.content + '[/TOOL_RESULTS]' }}
{%- else %}{{- raise_exception('only user, assistant and tool') }}
{%- endif %}
{%- endfor %}"""
"""Alternating roles, a space before each reply that the prompt does not have, its own form of tool calls, and tools
that move to the last user turn."""

MISTRAL_V7 = MISTRAL.replace("if tools and loop.last", "if tools and loop.first")

GEMMA = """\
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}{%- set first = messages[0]['content'] + '\n\n' %}{%- set turns = messages[1:] %}
{%- else %}{%- set first = '' %}{%- set turns = messages %}{%- endif %}
{%- for message in turns %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{- raise_exception('roles must alternate') }}{%- endif %}
{{- '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\n' + (first if loop.first else '') }}
{{- (message['content'] | trim) + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\n' }}{%- endif %}"""

NO_SYSTEM = GEMMA.replace(
    "{%- for message in turns %}",
    "{%- if first %}{{- raise_exception('System role not supported') }}{%- endif %}\n{%- for message in turns %}",
)

# --------------------------------------------------------------------------- tokenizers

_CORPUS = [
    "the assistant and the user use a tool for the answer\n\nsystem\n{\"name\": \"calc\", \"arguments\": "
    "{\"expression\": \"17 * 23\"}}\n",
    "What is the weather in the north? I think that it is 391. héllo wörld 日本語 — «quoted» 🙂",
    "<tool_call> <tool_response> im_start im_end start_header_id end_of_turn think",
] * 3  # fmt: skip


def byte_level(
    special: Sequence[str], plain: Sequence[str] = (), *, bos: str | None = None, size: int = 420
) -> Tokenizer:
    """As GPT-2, Llama 3 and Qwen: bytes, a splitting pattern, merges. ``plain`` are added tokens that are not
    special."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core.train_from_iterator(
        _CORPUS, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    )
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    core.add_tokens([AddedToken(token, special=False, normalized=False) for token in plain])
    if bos:
        core.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, core.token_to_id(bos))]
        )
    return core


def metaspace(special: Sequence[str], *, bos: str, style: str) -> Tokenizer:
    """As SentencePiece's: ``▁`` for a space, single bytes where a character is unknown.

    ``style``: ``first`` puts a space before the text's start alone (Mistral), ``never`` nowhere (Gemma), ``legacy``
    before every piece between control tokens (Llama 2).
    """
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    learner.train_from_iterator(_CORPUS, trainers.BpeTrainer(vocab_size=350, show_progress=False))
    model = json.loads(learner.to_str())["model"]
    names = ["<unk>", *special, *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    vocab = {
        token: i for i, token in enumerate(dict.fromkeys([*names, *sorted(model["vocab"], key=model["vocab"].get)]))
    }
    core = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=[tuple(pair) for pair in model["merges"]],
            byte_fallback=True,
            unk_token="<unk>",
            fuse_unk=True,
        )
    )
    restore: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if style == "never":
        core.normalizer = normalizers.Replace(" ", "▁")
    elif style == "legacy":
        core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        restore.append(decoders.Strip(" ", 1, 0))
    else:
        core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        restore.append(decoders.Strip(" ", 1, 0))
    core.decoder = decoders.Sequence(restore)
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in ["<unk>", *special]])
    core.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, core.token_to_id(bos))]
    )
    return core


def wrap(
    core: Tokenizer, template: str | None, *, eos: str, bos: str | None = None, unk: str | None = None
) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=eos, bos_token=bos, unk_token=unk, clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = template
    return tokenizer


CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>", "<|fim_middle|>")
HEADERS = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|python_tag|>",
)
INST = (
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[TOOL_CALLS]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
)
TURNS = ("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>")
SEPARATED = ("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[ARGS]", "[CALL_ID]", "[TOOL_CONTENT]")
DEEPSEEK = (
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜tool▁sep｜>",
    *(f"<｜tool▁{what}▁{end}｜>" for what in ("calls", "call", "outputs", "output") for end in ("begin", "end")),
)
CHANNELS = (
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|channel|>",
    "<|constrain|>",
    "<|call|>",
    "<|return|>",
    "<|endoftext|>",
)
PHI = (
    "<|endoftext|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|end|>",
    "<|tool|>",
    "<|/tool|>",
    "<|tool_call|>",
    "<|/tool_call|>",
)
OBSERVED = ("<|endoftext|>", "[GMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
OBSERVED_TAGS = (
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
)
DECLARED = (
    "<pad>",
    "<eos>",
    "<bos>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<escape>",
    *(f"<{end}_function_{what}>" for what in ("declaration", "call", "response") for end in ("start", "end")),
)
PIPED = ("<pad>", "<eos>", "<bos>", "<|turn>", "<turn|>", "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>",
"<|tool_response>", "<tool_response|>", '<|"|>', "<|channel>", "<channel|>")  # fmt: skip
R1_TOKENS = ("<|begin|>", "<|end|>", "<|User|>", "<|Assistant|>")


def _chatml(template: str, plain: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    return wrap(byte_level(CHATML, plain), template, eos="<|im_end|>")


# --------------------------------------------------------------------------- families


def _tagged(call: ToolCall) -> str:
    return f'<tool_call>\n{{"name": "{call.name}", "arguments": {call.arguments}}}\n</tool_call>'


def _hermes(message: Message) -> str:
    return "\n".join([*([message.content] if message.content else []), *map(_tagged, message.tool_calls)])


def _llama(message: Message) -> str:
    written = [f'{{"name": "{call.name}", "parameters": {call.arguments}}}' for call in message.tool_calls]
    return "\n".join([*([message.content.strip()] if message.content else []), *written])


def _as(tool_format: str) -> Callable[[Message], str]:
    """Written as the format says."""
    form = FORMATS[tool_format]
    return lambda message: form.write_reply(
        message.content, [(call.name, call.arguments) for call in message.tool_calls]
    )


@dataclass(frozen=True)
class Family:
    """``native``: the template renders tools itself. ``trims``: it strips every content. ``writes``: an assistant turn
    as its model samples it.

    ``exact``: without samples, the whole is what transformers renders. ``bare``: only if calls come without text.
    ``text_arguments``: and if they are given as text.
    """

    name: str
    make: Callable[[], PreTrainedTokenizerFast]
    end: str
    tool_format: str
    native: bool
    trims: bool = False
    alternates: bool = False
    writes: Callable[[Message], str] = _hermes
    before: str = ""
    """What a sample without calls starts with that a history's template writes."""
    exact: bool = True
    bare: bool = False
    text_arguments: bool = False

    def samples(self, message: Message) -> str:
        return ("" if message.tool_calls else self.before) + self.writes(message)


FAMILIES = {
    family.name: family
    for family in (
        Family("smol", lambda: _chatml(SMOL), "<|im_end|>", "text", False),
        Family("hermes", lambda: _chatml(HERMES), "<|im_end|>", "hermes", True),
        Family("hermes_tags", lambda: _chatml(HERMES, TAGS), "<|im_end|>", "hermes", True),
        Family("thinking", lambda: _chatml(THINKING, TAGS), "<|im_end|>", "hermes", True),
        Family(
            "llama3",
            lambda: wrap(byte_level(HEADERS, bos="<|begin_of_text|>"), LLAMA3, eos="<|eot_id|>",
            bos="<|begin_of_text|>"),
            "<|eot_id|>", "llama3_json", True, trims=True, writes=_llama,
        ),
        Family(
            "mistral",
            lambda: wrap(metaspace(INST, bos="<s>", style="first"), MISTRAL, eos="</s>", bos="<s>", unk="<unk>"),
            "</s>", "mistral", False, trims=True, alternates=True, before=" ", writes=_as("mistral"),
        ),
        Family(
            "mistral_v7",
            lambda: wrap(metaspace(INST, bos="<s>", style="first"), MISTRAL_V7, eos="</s>", bos="<s>", unk="<unk>"),
            "</s>", "mistral", True, trims=True, alternates=True, before=" ", writes=_as("mistral"), bare=True,
        ),
        Family(
            "gemma",
            lambda: wrap(metaspace(TURNS, bos="<bos>", style="never"), GEMMA, eos="<eos>", bos="<bos>", unk="<unk>"),
            "<end_of_turn>", "text", False, trims=True, alternates=True,
        ),
        Family(
            "no_system",
            lambda: wrap(byte_level(TURNS, bos="<bos>"), NO_SYSTEM, eos="<eos>", bos="<bos>"),
            "<end_of_turn>", "text", False, trims=True, alternates=True,
        ),
        Family("qwen3_coder", lambda: _chatml(QWEN_CODER, TAGS), "<|im_end|>", "qwen3_coder", True,
        writes=_as("qwen3_coder")),
        Family(
            "mistral_v13",
            lambda: wrap(byte_level((*INST, *SEPARATED), bos="<s>"), MISTRAL_V13, eos="</s>", bos="<s>"),
            "</s>", "mistral_v11", True, writes=_as("mistral_v11"), exact=False,
        ),
        Family(
            "deepseek_v3", lambda: _deepseek(DEEPSEEK_V3), DEEPSEEK[1], "deepseek_v3", True, writes=_as("deepseek_v3"),
            text_arguments=True
        ),
        Family(
            "deepseek_v31", lambda: _deepseek(DEEPSEEK_V31), DEEPSEEK[1], "deepseek_v31", True,
            writes=_as("deepseek_v31"), text_arguments=True
        ),
        Family(
            "phi4", lambda: wrap(byte_level(PHI), PHI4, eos="<|endoftext|>"), "<|end|>", "phi4", True,
            writes=_as("phi4"), exact=False
        ),
        Family(
            "function_gemma",
            lambda: wrap(metaspace(DECLARED, bos="<bos>", style="never"), FUNCTION_GEMMA, eos="<eos>", bos="<bos>",
            unk="<unk>"),
            "<end_of_turn>", "function_gemma", True, writes=_as("function_gemma"), exact=False,
        ),
    )
}  # fmt: skip


def _deepseek(template: str) -> PreTrainedTokenizerFast:
    return wrap(byte_level(DEEPSEEK, TAGS, bos=DEEPSEEK[0]), template, eos=DEEPSEEK[1], bos=DEEPSEEK[0])


# --------------------------------------------------------------------------- real tokenizers, for `make test-families`

REAL = Path(os.environ["AGL_TOKENIZERS"]) if "AGL_TOKENIZERS" in os.environ else None
"""A folder with a folder for each, made by scripts/families.py."""


@cache
def _real(name: str) -> PreTrainedTokenizerFast:
    assert REAL is not None
    return AutoTokenizer.from_pretrained(REAL / name)


def _mistral() -> PreTrainedTokenizerFast:
    """mistral-common's vocabulary under our template, as the package has none."""
    from transformers.integrations.mistral.tokenizer import MistralConverter

    assert REAL is not None
    core = MistralConverter(str(REAL / "mistral" / "tekken.json")).converted()
    return wrap(
        core, MISTRAL_V7.replace("'[INST] '", "'[INST]'").replace("' ' +", "'' +"), eos="</s>", bos="<s>", unk="<unk>"
    )


def _gptoss() -> PreTrainedTokenizerFast:
    """Its package has no template."""
    assert REAL is not None
    tokenizer = AutoTokenizer.from_pretrained(REAL / "gptoss")
    tokenizer.chat_template = HARMONY
    return tokenizer


_REAL_FAMILIES = (
    Family("qwen3", lambda: _real("qwen3"), "<|im_end|>", "hermes", True, trims=True, exact=False),
    # The package named so has Llama 3's tokens and template, which know no tools.
    Family("llama3_1", lambda: _real("llama3_1"), "<|eot_id|>", "text", False, trims=True),
    Family("gemma3", lambda: _real("gemma3"), "<end_of_turn>", "text", False, trims=True, alternates=True),
    Family(
        "deepseek",
        lambda: _real("deepseek_v3"),
        DEEPSEEK[1],
        "deepseek_v3",
        False,
        writes=_as("deepseek_v3"),
        exact=False,
    ),
    Family(
        "mistral_tekken",
        _mistral,
        "</s>",
        "mistral",
        True,
        trims=True,
        alternates=True,
        writes=_as("mistral"),
        bare=True,
        exact=False,
    ),
)
if REAL is not None:
    _folders = {"deepseek": "deepseek_v3", "mistral_tekken": "mistral"}
    FAMILIES |= {
        family.name: family for family in _REAL_FAMILIES if (REAL / _folders.get(family.name, family.name)).exists()
    }


SPECIAL: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "glm": lambda: wrap(byte_level(OBSERVED, OBSERVED_TAGS), GLM, eos="<|endoftext|>"),
    "gemma4": lambda: wrap(metaspace(PIPED, bos="<bos>", style="never"), GEMMA4, eos="<eos>", bos="<bos>", unk="<unk>"),
    "harmony": lambda: wrap(byte_level(CHANNELS), HARMONY, eos="<|return|>"),
}
"""Families whose turns do not simply end with a token of their own."""
if REAL is not None and (REAL / "gptoss").exists():
    SPECIAL["gptoss"] = _gptoss


@cache
def special(name: str, *, keep_reasoning: bool = False) -> ChatTemplate:
    return ChatTemplate(SPECIAL[name](), keep_reasoning=keep_reasoning)


@cache
def tokenizer_of(name: str) -> PreTrainedTokenizerFast:
    return FAMILIES[name].make()


@cache
def template_of(name: str, tool_format: str | None = None) -> ChatTemplate:
    template = load_template(tokenizer_of(name), tool_format=tool_format)
    assert isinstance(template, ChatTemplate)
    return template


@cache
def thinks_first() -> ChatTemplate:
    template = load_template(_chatml(THINKS_FIRST, TAGS))
    assert isinstance(template, ChatTemplate)
    return template


@cache
def r1() -> ChatTemplate:
    template = load_template(wrap(byte_level(R1_TOKENS, TAGS), R1, eos="<|end|>", bos="<|begin|>"))
    assert isinstance(template, ChatTemplate)
    return template


CALC = Tool(
    "calc",
    "Calculates.",
    {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
)
CLOCK = Tool("clock", "The time in a city ☂.", {"type": "object", "properties": {"city": {"type": "string"}}})


def as_hf(messages: Sequence[Message], *, text_arguments: bool = False) -> list[dict[str, Any]]:
    """The messages as transformers takes them."""
    result: list[dict[str, Any]] = []
    for message in messages:
        entry: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.tool_calls:
            entry["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {
                        "name": call.name,
                        "arguments": call.arguments if text_arguments else json.loads(call.arguments),
                    },
                }
                for call in message.tool_calls
            ]
        if message.tool_call_id:
            entry["tool_call_id"] = message.tool_call_id
        if message.reasoning is not None:
            entry["reasoning_content"] = message.reasoning
        result.append(entry)
    return result


def whole(
    tokenizer: PreTrainedTokenizerFast,
    messages: Sequence[Message],
    tools: Sequence[Tool] = (),
    *,
    text_arguments: bool = False,
) -> str:
    """The conversation as transformers renders it."""
    offered = [
        {
            "type": "function",
            "function": {"name": t.name, "description": t.description, "parameters": dict(t.parameters)},
        }
        for t in tools
    ]
    said = as_hf(messages, text_arguments=text_arguments)
    return str(tokenizer.apply_chat_template(said, tools=offered or None, tokenize=False, add_generation_prompt=True))
