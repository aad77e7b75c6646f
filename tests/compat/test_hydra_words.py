"""Words of a command line are the values Hydra reads in them."""

from __future__ import annotations

from typing import Any

import pytest

from agentlightning.compat.hydra_words import settings_of
from agentlightning.errors import ConfigError


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("a.b=3", 3),
        ("+a.b=1e-6", 1e-6),
        ("++a.b=-1", -1),
        ("a.b=null", None),
        ("a.b=True", True),
        ("a.b=text with spaces", "text with spaces"),
        ("a.b=/a/path.parquet", "/a/path.parquet"),
        ("a.b=key=value", "key=value"),
        ("a.b=", ""),
        ("a.b='12'", "12"),
        ("a.b='it\\'s, quoted'", "it's, quoted"),
        ('a.b="a: [b"', "a: [b"),
        ("a.b=[console,file]", ["console", "file"]),
        ("a.b=['a,b', 2, [null]]", ["a,b", 2, [None]]),
        ("a.b=[]", []),
        ("a.b={c:1,d:[x,y],'e f':{g:false}}", {"c": 1, "d": ["x", "y"], "e f": {"g": False}}),
        ("a.b=out/${a.c}/x", "out/${a.c}/x"),
        ("a.b=${oc.select:a.c,3}", "${oc.select:a.c,3}"),
    ],
)
def test_a_word_is_the_value_that_hydra_reads(word: str, value: Any) -> None:
    read = settings_of([word])["a.b"]
    assert read == value and type(read) is type(value)


def test_a_later_word_holds_over_an_earlier_one() -> None:
    assert settings_of(["a=1", "b=2", "+a=3"]) == {"a": 3, "b": 2}


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("a", "a: expected key=value"),
        ("--config-name=other", "--config-name=other: .*no files of them are read"),
        ("-m", "-m: settings are key=value"),
        ("~a.b", "~a.b: nothing is set that could be taken away"),
        ("a=1,2", "a=1,2: a run takes one value"),
        ("a=[1,2", r"a=\[1,2: '\]' is missing"),
        ("a='b", "a='b: a text that begins with ' has to end with it"),
        ("a={b}", r"a=\{b\}: a table is \{key:value"),
        ("a='b'c", "a='b'c: 'c' follows a value"),
    ],
)
def test_a_word_that_is_none_is_one_line(word: str, says: str) -> None:
    with pytest.raises(ConfigError, match=f"^{says}") as raised:
        settings_of([word])
    assert "\n" not in str(raised.value)
