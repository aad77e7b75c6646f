"""Answers to math problems: found in a model's reply, and compared with the right one."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from decimal import Decimal
from itertools import product
from numbers import Integral, Real
from typing import cast

from agentlightning.errors import ConfigError
from agentlightning.scoring.expressions import NoValueError, tokens_of
from agentlightning.scoring.quantities import readings, same_quantity

LONGEST = 1000
"""Characters of an answer that are read. A longer one is right only where it is the same text."""
DEEPEST = 4
"""Lists within each other."""
REPLY = 200_000
"""Characters at the end of a reply in which its answer is looked for."""

_BOXED = re.compile(r"\\f?boxed\s*\{")
_SHARPS = re.compile(r"#{3,}")
_LABEL = re.compile(r"\s*(?:the\s+)?(?:final\s+)?answer\b(?:\s+is\b)?[\s:*]*", re.IGNORECASE)
_OPTION = re.compile(r"(?:option\s+|choice\s+)?(?:\(([a-z])\)|([a-z])[.):]|([a-z])(?=\s*$))(?:\s.*)?$", re.DOTALL)
_PREFIX = re.compile(
    r"\s*(?:(?:the\s+)?(?:final\s+)?(?:answer|result|value|total)\s*(?:is|=|:)"
    r"|(?:it\s+is\s+)?(?:around|about|approximately|approx\.?|roughly|nearly|circa|equals)(?![a-z])"
    r"|[=≈~:]"
    r"|\\?[a-z][a-z ]{0,30}[=≈]"  # a name: x = 3
    r"|[^a-z=≈]{1,60}[=≈])\s*"  # a sum before its result: 3 + 4 = 7
)
_WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf|textit|mbox|operatorname)\s*\{([^{}]*)\}")
_THOUSANDS = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])")
_MIXED = re.compile(
    r"(?<![0-9.)}\]^/*+\-])(\s*)([0-9]{1,9})(?:\s*\\frac\{([0-9]{1,9})\}\{([0-9]{1,9})\}|\s+([0-9]{1,9})/([0-9]{1,9})(?![0-9.]))"
)
_REPLACED = (
    (re.compile(r"\\(?:left|right|displaystyle|bigl?|bigr?)(?![a-z])|\\[,;!:]|\\ |\\[()\[\]]|(?<!\\)~"), " "),
    (re.compile(r"\\[dtc]frac(?![a-z])"), r"\\frac"),
    (re.compile(r"\\frac\s*([0-9])\s*([0-9])"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\(?:cdot|times|ast)(?![a-z])|[×·∙⋅]"), "*"),
    (re.compile(r"\\div(?![a-z])|[÷⁄∕]"), "/"),
    (re.compile(r"\\(?:approx|sim|simeq)(?![a-z])"), "≈"),
    (re.compile(r"√|\\surd(?![a-z])"), r"\\sqrt "),
    (re.compile(r"π"), r"\\pi "),
    (re.compile(r"\^\s*(?:\\circ|\{\s*\\circ\s*\})|º"), "°"),
    (re.compile(r"\\([%$_#&{}])"), r"\1"),
    (re.compile(r"[−–—]"), "-"),
)  # fmt: skip
_RAISED = str.maketrans({raised: f"^{digit}" for digit, raised in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")})
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_AND = re.compile(r"\b(?:and|or)\b")


def score_math(reply: object, right: object, *, tolerance: float = 0.01) -> float:
    """1.0 where the answer of a model's reply is the right one, else 0.0.

    The answer is what stands behind the last ``###`` or in the last ``\\boxed{}``; without them the reply is.

    >>> score_math("4 pens cost 6 dollars, so ### ANSWER: $1.50 ###", 1.5)
    1.0
    """
    said = final_answer(reply) if isinstance(reply, str) else reply
    return float(same_answer(reply if said is None else said, right, tolerance=tolerance))


def final_answer(reply: str) -> str | None:
    """What a reply marks as its answer: the line behind the last ``###`` (up to a closing one), or the inside of the
    last ``\\boxed{}``, whichever comes later. None where nothing is marked.

    >>> final_answer("so it is #### 42")
    '42'
    """
    reply = reply[-REPLY:]
    boxes = [match.end() for match in _BOXED.finditer(reply)]
    sharps = [match.span() for match in _SHARPS.finditer(reply)]
    for number, (begin, end) in reversed(list(enumerate(sharps))):
        if boxes and boxes[-1] > begin:
            break
        follows = sharps[number + 1][0] if number + 1 < len(sharps) else len(reply)
        text = reply[end:follows]
        label = _LABEL.match(text)
        text = text[label.end() if label else 0 :].strip()
        if text:
            return text.splitlines()[0].strip().strip("*`").strip()
    return _inside(reply, boxes[-1]) if boxes else None


def same_answer(said: object, right: object, *, tolerance: float = 0.01) -> bool:
    """Whether an answer, most often a model's text, is the right one.

    - letters of options: ``(A)``, ``a.``, ``B) 12 km``, ``C``;
    - numbers with a currency, a unit, thousands separators, a percent sign, behind ``=``, ``x =`` or ``around``,
      equal within ``tolerance`` of the right one. A percent sign that only one of the two has may be left out or
      mean a hundredth. What units do is said in `quantities`;
    - fractions, mixed numbers, roots, powers and the usual functions, plain or in LaTeX, by value; formulas by their
      values at a few points, without a tolerance;
    - lists, separated by commas, semicolons or ``and``, item by item in their order, with brackets or without;
      they may be lists of Python too;
    - else the same text, whatever its case, spaces and last full stop.

    Raises ConfigError for a right answer that is empty, or a tolerance that is not from 0 to 1.
    """
    if isinstance(tolerance, bool) or not 0 <= tolerance <= 1:
        raise ConfigError(f"same_answer(tolerance={tolerance!r}): expected a number from 0 to 1")
    wanted = _text(right)
    if wanted is None or not wanted.strip():
        raise ConfigError(f"same_answer(right={right!r:.60}): there is nothing to compare with")
    text = _text(said)
    return text is not None and _same(text, wanted, tolerance)


def _same(said: str, right: str, tolerance: float) -> bool:
    if _letters(said) == _letters(right):
        return True
    if len(said) > LONGEST or len(right) > LONGEST:
        return False
    said, right = _tidy(said), _tidy(right)
    if _letters(said) == _letters(right):
        return True
    option = _OPTION.match(right)
    if option is not None:
        other = _OPTION.match(said)
        return other is not None and _only(option) == _only(other)
    # A comma between three digits may be a separator of thousands or of a list.
    return any(_same_items(a, b, tolerance, DEEPEST) for a, b in product(_commas(said), _commas(right)))


def _only(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group)


def _same_items(said: str, right: str, tolerance: float, depth: int) -> bool:
    ours, theirs = _items(said), _items(right)
    if len(ours) != len(theirs) or (len(ours) > 1 and not depth):
        return False
    if len(ours) > 1:
        return all(_same_items(a, b, tolerance, depth - 1) for a, b in zip(ours, theirs, strict=True))
    said, right = _unprefixed(ours[0]), _unprefixed(theirs[0])
    if said and _letters(said) == _letters(right):
        return True
    try:
        a, b = readings(tokens_of(said)), readings(tokens_of(right))
    except NoValueError:
        return False
    return any(same_quantity(x, y, tolerance) for x, y in product(a, b))


def _items(text: str) -> list[str]:
    """What commas, semicolons and ``and`` outside of brackets separate, in brackets around the whole or without."""
    text = text.strip()
    if text[:1] in _CLOSING and _closing(text, 0) == len(text) - 1 and len(_separated(text[1:-1])) > 1:
        text = text[1:-1]
    return _separated(text)


def _separated(text: str) -> list[str]:
    items, depth, begin = list[str](), 0, 0
    words = {match.start(): match.end() for match in _AND.finditer(text)}
    for place, letter in enumerate(text):
        if letter in _CLOSING:
            depth += 1
        elif letter in _CLOSING.values():
            depth -= 1
        elif depth == 0 and (letter in ",;" or place in words):
            items.append(text[begin:place].strip())
            begin = words.get(place, place + 1)
    items.append(text[begin:].strip())
    return [item for item in items if item] or [""]


def _closing(text: str, place: int) -> int:
    """Where the bracket that opens at ``place`` closes; -1 where it does not."""
    depth = 0
    for at in range(place, len(text)):
        depth += (text[at] in _CLOSING) - (text[at] in _CLOSING.values())
        if depth == 0:
            return at
    return -1


def _inside(text: str, begin: int) -> str:
    """What stands in the braces that opened just before ``begin``; all that follows where they do not close."""
    end, depth = begin, 1
    while end < len(text):
        depth += (text[end] == "{") - (text[end] == "}")
        if depth == 0:
            break
        end += 1
    return text[begin:end].strip()


def _commas(text: str) -> list[str]:
    """The text without separators of thousands, and as it is."""
    return list(dict.fromkeys((_THOUSANDS.sub(lambda match: match[0].replace(",", ""), text), text)))


def _tidy(text: str) -> str:
    """An answer in lower case, without what only sets it in type."""
    text = unicodedata.normalize("NFKC", text.translate(_RAISED)).casefold()
    boxed = _BOXED.search(text)
    if boxed is not None:
        text = _inside(text, boxed.end())
    text = _WRAPPED.sub(r" \1 ", text)
    for pattern, with_this in _REPLACED:
        text = pattern.sub(with_this, text)
    text = _MIXED.sub(lambda m: f"{m[1]}({m[2]}+{m[3] or m[5]}/{m[4] or m[6]})", text)
    text = text.strip().strip("*`").strip()
    if len(text) > 1 and text[0] == text[-1] == "$":
        text = text.strip("$").strip()
    return text.rstrip(".,;: ").strip()


def _unprefixed(text: str) -> str:
    for _ in range(4):
        match = _PREFIX.match(text)
        if match is None or match.end() == len(text):
            break
        text = text[match.end() :]
    return text


def _letters(text: str) -> str:
    """A text for comparing it as such."""
    return " ".join(text.casefold().split()).rstrip(".")


def _text(value: object, depth: int = DEEPEST) -> str | None:
    """An answer as text; None for what is none."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | Decimal):
        return str(value)
    if isinstance(value, Real):  # numpy's are too
        try:
            return repr(int(value)) if isinstance(value, Integral) else repr(float(value))
        except (ValueError, OverflowError):  # more digits than Python writes out, larger than a float
            return None
    if isinstance(value, list | tuple) and depth:
        items = [_text(item, depth - 1) for item in cast("Sequence[object]", value)]
        if all(item is not None for item in items):
            return f"[{'; '.join(cast('list[str]', items))}]"
    return None
