"""Chat templates as programs: what Hugging Face's documentation promises them is there, and what it does not stays out
of reach."""

from __future__ import annotations

from typing import Any

import pytest
from jinja2.exceptions import SecurityError, TemplateError, UndefinedError

from agentlightning.templates.jinja import compile_template
from tests.templates.fixtures import CHATML, byte_level, wrap

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "a <b> & 'é'"},
    {"role": "user", "content": "Hi", "items": ["x"], "tags": {"k": [1, 2.5, None, True]}},
    {"role": "assistant", "content": "Yo"},
]


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}\n    {% if loop.first %}\n{{ m.role }}:\n    {% endif %}\n{{ m['content'] }}\n{% "
        "endfor %}\n",
        "{% for m in messages %}{% if loop.index0 == 1 %}{% continue %}{% endif %}{{ m.content }}{% break %}{% endfor "
        "%}",
        "{% for m in messages %}{% generation %}{{ m.content }}{% if m.role == 'user' %}!{% endif %}{% endgeneration "
        "%}{% endfor %}",
        "{{ messages[0] | tojson }}{{ messages[1].tags | tojson(indent=2) }}{{ messages[1]['tags'] | "
        "tojson(separators=(',', ':'), sort_keys=true) }}",
        "{{ messages[0].content | tojson(ensure_ascii=True) }}",
        "{% set ns = namespace(a=1, b='x') %}{% for m in messages %}{% set ns.a = ns.a + loop.length %}{% endfor %}{{ "
        "ns.a }}{{ ns.b }}",
        "{% for k, v in messages[1].tags | items %}{{ k }}{{ v }}{% endfor %}{% for k in messages[1] %}{{ k }}{% "
        "endfor %}",
        "{% for m in messages %}{{ loop.index }}{{ loop.last }}{{ loop.previtem.role if loop.previtem is defined }}{{ "
        "loop.revindex }}{% endfor %}",
        "{{ messages[1].nothing is defined }}{{ messages[1].nothing or 'none' }}{{ messages[0].get('x', 'y') }}{{ "
        "messages[1]['items'][0] }}",
        "{{ messages[1].items() | list | length }}{{ bos_token }}{{ eos_token }}{{ tools is none }}{{ documents is "
        "none }}{{ add_generation_prompt }}",
        "{% macro show(m) %}{{ m.role | upper }}{% endmacro %}{{ show(messages[2]) }}{{ messages | "
        "map(attribute='role') | join(',') }}",
        "{{ 'x' if tools else 'y' }}{{ strftime_now('%Y') | length }}{{ messages[0].content.split('<')[0] }}{{ "
        "dict(a=1).a }}",
    ],
)
def test_templates_render_as_transformers_renders_them(source: str) -> None:
    tokenizer = wrap(byte_level(CHATML), source, eos="<|im_end|>", bos="<|im_start|>")
    expected = tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    given = {"messages": MESSAGES, "tools": None, "documents": None, "add_generation_prompt": True}
    assert compile_template(source)(**given, **tokenizer.special_tokens_map) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(a=1) }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ namespace(_x=1) }}",
        "{% for m in messages %}{{ loop.__class__.__mro__ }}{% endfor %}",
        "{{ messages[0].__class__.__base__.__subclasses__() }}",
        "{{ raise_exception('no') }}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    with pytest.raises((SecurityError, UndefinedError, TemplateError)):
        compile_template(source)(messages=[{"role": "user"}])


def test_a_source_that_is_no_template_is_refused() -> None:
    with pytest.raises(TemplateError):
        compile_template("{% for")
