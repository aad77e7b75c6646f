r"""The value of an expression that a model wrote: arithmetic and formulas, plain (``2 * sqrt(3)/3``) or in LaTeX
(``\frac{2\sqrt{3}}{3}``).

The text is cut into tokens and evaluated as it is read, in floating-point numbers; nothing is handed to ``eval`` or to
a library that calls it. An operation on such numbers takes no longer for large ones (``9**9**9`` has no value, at
once), so that the number of tokens bounds the time, and `DEEPEST` the stack.

A formula has no value of its own: it is evaluated at `POINTS`, and two formulas that agree at each are taken for equal.
"""

from __future__ import annotations

import cmath
import math
import re
from collections.abc import Callable, Sequence

DEEPEST = 25
"""Brackets, powers and arguments within each other. More have no value."""

POINTS = (0.3701, 2.9317, 11.713)
"""Where formulas are compared: each variable gets a number of its own near one of these."""

_TOKEN = re.compile(
    r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[-+]?[0-9]+)?(?![0-9.])"  # a number
    r"|\\?[a-z]+|µ"  # a word
    r"|\*\*|[-+*/^!|(){}\[\]%°$€£¥]"
    r"|\s+"
)
_CONSTANTS = {"pi": math.pi, "e": math.e}
_OPENING = {"(": ")", "[": "]", "{": "}"}


def _root(value: complex, degree: complex) -> complex:
    """A root; of a negative number the real one where there is one."""
    if value.imag == 0 and value.real < 0 and degree.imag == 0 and degree.real % 2 == 1:
        return -((-value.real) ** (1 / degree.real))
    return value ** (1 / degree)


def _raised(base: complex, exponent: complex) -> complex:
    """A power, without an imaginary part where it has none."""
    if base.imag == exponent.imag == 0 and (base.real > 0 or exponent.real % 1 == 0):
        return complex(base.real**exponent.real)
    return base**exponent


_FUNCTIONS: dict[str, Callable[[complex], complex]] = {
    "sqrt": cmath.sqrt,
    "cbrt": lambda value: _root(value, 3),
    "exp": cmath.exp,
    "ln": cmath.log,
    "log": cmath.log10,
    "sin": cmath.sin,
    "cos": cmath.cos,
    "tan": cmath.tan,
    "cot": lambda value: 1 / cmath.tan(value),
    "sec": lambda value: 1 / cmath.cos(value),
    "csc": lambda value: 1 / cmath.sin(value),
    "arcsin": cmath.asin,
    "arccos": cmath.acos,
    "arctan": cmath.atan,
    "abs": abs,
}

NAMES = {*_CONSTANTS, *_FUNCTIONS, "frac"}
"""Words that mean something in an expression. Other words of up to three letters are products of variables."""


class NoValueError(ValueError):
    """What was read is no expression, or its value is no number that a computer has."""


def tokens_of(text: str) -> list[str]:
    """The numbers, words and marks of a text in lower case, without the backslashes of LaTeX.

    Raises NoValueError for any other character.
    """
    tokens: list[str] = []
    place = 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise NoValueError(f"no expression has a {text[place]!r} there")
        if not match[0].isspace():
            tokens.append(match[0].lstrip("\\"))
        place = match.end()
    return tokens


def values(tokens: Sequence[str]) -> tuple[list[complex], bool]:
    """The value of an expression at each of `POINTS`, and whether it has variables; without them there is one value.

    Raises NoValueError.
    """
    first = _Reader(tokens, POINTS[0])
    found = [first.value()]
    if first.variables:
        found += [_Reader(tokens, point).value() for point in POINTS[1:]]
    return found, bool(first.variables)


class _Reader:
    """Evaluates tokens from left to right, a method for each level of precedence."""

    def __init__(self, tokens: Sequence[str], point: float) -> None:
        self.tokens = tokens
        self.point = point
        self.place = 0
        self.depth = 0
        self.variables: set[str] = set()

    def value(self) -> complex:
        try:
            value = complex(self._sum())
        except ArithmeticError as error:  # too large, or divided by nothing
            raise NoValueError(str(error)) from error
        if self.place < len(self.tokens):
            raise NoValueError(f"{self.tokens[self.place]!r} has no place there")
        if not cmath.isfinite(value):
            raise NoValueError("too large")
        return value

    def _next(self) -> str:
        return self.tokens[self.place] if self.place < len(self.tokens) else ""

    def _take(self, *expected: str) -> str:
        token = self._next()
        if token == "" or (expected and token not in expected):
            raise NoValueError(f"{' or '.join(expected) or 'more'} expected, not {token!r}")
        self.place += 1
        return token

    def _sign(self) -> int:
        sign = 1
        while self._next() in ("+", "-"):
            sign = -sign if self._take() == "-" else sign
        return sign

    def _sum(self) -> complex:
        total = self._sign() * self._product()
        while self._next() in ("+", "-"):
            total += self._sign() * self._product()
        return total

    def _product(self) -> complex:
        value = self._power()
        while (token := self._next()) and token not in ("+", "-", ")", "]", "}", "|"):
            if token == "/":
                self._take()
                value = value / (self._sign() * self._power())
            elif token == "*":
                self._take()
                value = value * (self._sign() * self._power())
            elif token[0].isdigit() and self.tokens[self.place - 1][0].isdigit():
                raise NoValueError("two numbers beside each other")
            else:
                value = value * self._power()
        return value

    def _power(self) -> complex:
        value = self._atom()
        while self._next() == "!":
            self._take()
            if value.imag or value.real < 0 or value.real > 170 or value.real % 1:
                raise NoValueError("no factorial of that")
            value = complex(math.factorial(int(value.real)))
        if self._next() in ("^", "**"):
            self._take()
            with self._deeper():
                value = _raised(value, self._sign() * self._power())
        return value

    def _atom(self) -> complex:
        token = self._take()
        if token[0].isdigit() or token[0] == ".":
            return complex(float(token))
        if token == "|":
            with self._deeper():
                value = abs(self._sum())
            self._take("|")
            return complex(value)
        if token in _OPENING:
            with self._deeper():
                value = self._sum()
            self._take(_OPENING[token])
            return value
        if token == "frac":
            with self._deeper():
                return self._atom() / self._atom()
        if token in _FUNCTIONS:
            return self._function(token)
        if token in _CONSTANTS:
            return complex(_CONSTANTS[token])
        return self._product_of_variables(token)

    def _function(self, name: str) -> complex:
        with self._deeper():
            degree = power = None
            if name == "sqrt" and self._next() == "[":
                degree = self._atom()
            elif self._next() == "^":
                self._take()
                power = self._sign() * self._atom()
            argument = self._atom() if self._next() in _OPENING else self._power()
        try:
            value = _FUNCTIONS[name](argument) if degree is None else _root(argument, degree)
        except ValueError as error:  # outside of what the function is defined for
            raise NoValueError(str(error)) from error
        return complex(value) if power is None else _raised(complex(value), power)

    def _product_of_variables(self, word: str) -> complex:
        if len(word) > 3 or not word.isalpha():
            raise NoValueError(f"{word[:20]!r} is no variable")
        value = 1.0
        for letter in word:
            self.variables.add(letter)
            value *= self.point + (ord(letter) % 32) * 0.0731
        return complex(value)

    def _deeper(self) -> _Deeper:
        return _Deeper(self)


class _Deeper:
    """Counts how deep a reader is, for as long as it lasts."""

    def __init__(self, reader: _Reader) -> None:
        self.reader = reader

    def __enter__(self) -> None:
        self.reader.depth += 1
        if self.reader.depth > DEEPEST:
            raise NoValueError("nested too deep")

    def __exit__(self, *_: object) -> None:
        self.reader.depth -= 1
