"""A number with what may stand beside it: a currency, a percent sign, a multiplier (``million``), a unit.

Units of the table are converted (``1.5 km`` is ``1500 m``) and never equal to one of another kind (``5 m``, ``5 s``);
a word that is no unit of it (``5 apples``) is left aside, as is a unit that only one of two answers has.
"""

from __future__ import annotations

import cmath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentlightning.scoring.expressions import NAMES, NoValueError, values

EXACT = 1e-9
"""How far apart two numbers may be, relative to the larger, that are equal but for rounding."""

_UNITS: dict[str, tuple[str, float]] = {
    name: (kind, factor)
    for kind, table in {
        "length": "m meter metre 1, km kilometer kilometre 1000, dm 0.1, cm centimeter centimetre 0.01, "
        "mm millimeter millimetre 0.001, in inch inches 0.0254, ft foot feet 0.3048, yd yard 0.9144, mi mile 1609.344",
        "mass": "g gram gramme 1, kg kilogram kilo 1000, mg milligram 0.001, lb pound 453.59237, oz ounce 28.349523125",
        "time": "s sec second 1, ms millisecond 0.001, min minute 60, h hr hour 3600, day 86400, week 604800",
        "volume": "l liter litre 1, ml milliliter millilitre 0.001, cl centiliter centilitre 0.01",
        "dollars": "$ dollar usd 1, cent 0.01",
        "euros": "€ euro eur 1",
        "pounds": "£ gbp 1",
        "yen": "¥ jpy 1",
        "angle": "° deg degree 1, rad radian 57.29577951308232",
    }.items()
    for entry in table.split(", ")
    for *names, factor in [(*entry.split()[:-1], float(entry.split()[-1]))]
    for name in names
}
"""By name in the singular: what is measured, and how many of the kind's first unit it is."""

_MULTIPLIERS = {"dozen": 12.0, "hundred": 1e2, "thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
_PERCENT = {"%", "percent", "percentage", "pct"}
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_CURRENCIES = {"$", "€", "£", "¥"}


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number, or for a formula its values at `expressions.POINTS`."""

    values: list[complex]
    formula: bool
    percent: bool = False
    unit: Mapping[str, int] = field(default_factory=dict[str, int])
    """The power of each kind: ``{"length": 1, "time": -1}`` of a speed. Empty without a known unit."""
    factor: float = 1.0


def readings(tokens: Sequence[str]) -> list[Quantity]:
    """What an answer may mean: with what stands behind the number read as its unit (``2m`` is two metres), and as a
    part of the expression (twice m). Empty where it is neither."""
    found: list[Quantity] = []
    money = list(tokens[:1]) if tokens and tokens[0] in _CURRENCIES else []
    tokens = tokens[len(money) :]
    end = _end_of_number(tokens)
    ends = (end, len(tokens)) if not money and not set(tokens[end:]) & (_PERCENT | _CURRENCIES) else (end,)
    for end in dict.fromkeys(ends):
        try:
            numbers, formula = values(tokens[:end])
        except NoValueError:
            continue
        said = [*money, *tokens[end:]]
        factor, unit = _measure([word for word in said if word not in _PERCENT and word not in _MULTIPLIERS])
        for word in said:
            factor *= _MULTIPLIERS.get(word, 1.0)
        found.append(Quantity(numbers, formula, bool(_PERCENT & set(said)), unit, factor))
    return found


def same_quantity(said: Quantity, right: Quantity, tolerance: float) -> bool:
    if said.formula != right.formula or (said.unit and right.unit and said.unit != right.unit):
        return False
    if said.formula:
        tolerance = EXACT
    both = bool(said.unit) == bool(right.unit)
    factors = [(said.factor, right.factor) if both else (_bare(said), _bare(right))]
    if said.percent != right.percent:
        a, b = factors[0]
        factors.append((a / 100, b) if said.percent else (a, b / 100))
    return any(
        all(close(a * x, b * y, tolerance) for a, b in zip(said.values, right.values, strict=True)) for x, y in factors
    )


def close(said: complex, right: complex, tolerance: float) -> bool:
    try:
        return cmath.isclose(said, right, rel_tol=EXACT, abs_tol=max(tolerance * abs(right), 1e-12))
    except OverflowError:  # next to the largest number there is
        return said == right


def _bare(quantity: Quantity) -> float:
    """The factor of a quantity whose unit counts for nothing, as the other one has none."""
    return 1.0 if quantity.unit else quantity.factor


def _end_of_number(tokens: Sequence[str]) -> int:
    """Where the number ends, and the words behind it begin: ``1/2 km / h ^ 2`` has three tokens of number."""
    end = len(tokens)
    while end > 1:
        if _is_unit(tokens[end - 1]):
            end -= 1
        elif end > 3 and tokens[end - 2] in ("^", "**") and _is_unit(tokens[end - 3]) and tokens[end - 1] in ("2", "3"):
            end -= 3
        elif end < len(tokens) and tokens[end - 1] in ("/", "*") and end > 2 and _is_unit_before(tokens, end - 1):
            end -= 1
        else:
            break
    return end


def _is_unit_before(tokens: Sequence[str], end: int) -> bool:
    return _is_unit(tokens[end - 1]) or (end > 2 and tokens[end - 2] in ("^", "**") and _is_unit(tokens[end - 3]))


def _is_unit(token: str) -> bool:
    if token in NAMES:
        return False
    return token in _PERCENT or token in _CURRENCIES or _unit(token) is not None or (len(token) > 2 and token.isalpha())


def _unit(word: str) -> tuple[str, float] | None:
    return _UNITS.get(word) or (_UNITS.get(word.removesuffix("s")) if len(word) > 2 else None)


def _measure(words: Sequence[str]) -> tuple[float, dict[str, int]]:
    """The factor and kinds of a unit in its tokens: 1 and none where one of its words is not known."""
    factor, unit, sign, power = 1.0, dict[str, int](), 1, 1
    for place, word in enumerate(words):
        if word in ("/", "per"):
            sign = -1
        elif word in _POWERS:
            power = _POWERS[word]
        elif word == "*" or word in ("^", "**") or word.isdigit():
            continue
        else:
            known = _unit(word)
            if known is None:
                return 1.0, {}
            if list(words[place + 1 : place + 2]) in (["^"], ["**"]):
                power = int(words[place + 2])
            kind, each = known
            unit[kind] = unit.get(kind, 0) + sign * power
            factor *= each ** (sign * power)
            power = 1
    return factor, {kind: power for kind, power in unit.items() if power}
