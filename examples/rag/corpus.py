"""A small corpus of its own, passages about towns that do not exist, and questions about it. What a model knows
already is of no use here: it has to read.

Questions of one hop name their town. Those of two hops name what the town is known for or who founded it, so that the
passage that answers them is found only with the name that another one holds. Held-out questions are about towns that no
training question is about.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

TOWNS = (
    "Velm Orsk Tarrin Quill Besk Haldor Mirrow Ponte Sarn Ulvik Drace Ferrol Gant Ister Jarrow "
    "Kelda Lomas Nerth Ostrel Pavik Rusk Soltan Trevi Umber Varga Wend Yarrow Zell Arden Brack"
)
RIVERS = (
    "Oda Lenn Suri Tamble Quay Ferro Neth Sill Wye Calder Brine Hollow Sedge Marl Pike Otter Teal "
    "Alder Rowan Birch Flint Slate Amber Coral Opal Onyx Jasper Copper Silver Cobalt"
)
FIRST = "Ilse Marek Nadia Tomas Greta Pavel Sofia Anton Clara Felix"
LAST = "Brandt Novak Arlo Winter Lindt Moreau"
GOODS = (
    "blue glass, goat cheese, brass bells, wool carpets, pear cider, clay pipes, silver spoons, paper kites, "
    "rye bread, honey cakes, iron gates, oak barrels, lace collars, pocket clocks, wooden flutes, leather boots, "
    "plum jam, salt, tin soldiers, straw hats, stone bridges, smoked trout, wax candles, red paint, ginger beer, "
    "rope, violins, mustard, copper kettles, tea roses"
)
HELD_OUT = 8
"""Towns, of the last ones."""


def towns() -> list[dict[str, str]]:
    """Every town with its facts, the same ones each time; no two have one in common."""
    draw, names = random.Random(0), TOWNS.split()
    rivers, goods = draw.sample(RIVERS.split(), len(names)), draw.sample(GOODS.split(", "), len(names))
    founders = draw.sample([f"{first} {last}" for first in FIRST.split() for last in LAST.split()], len(names))
    years = draw.sample(range(1100, 1900), len(names))
    return [
        {"town": town, "river": river, "founder": founder, "year": str(year), "goods": good}
        for town, river, founder, year, good in zip(names, rivers, founders, years, goods, strict=True)
    ]


def passages() -> list[str]:
    """Three of each town, one for each kind of fact."""
    return [
        passage
        for each in towns()
        for passage in (
            f"The town of {each['town']} lies on the river {each['river']}.",
            f"{each['town']} was founded by {each['founder']} in the year {each['year']}.",
            f"People from far away visit {each['town']} for its {each['goods']}.",
        )
    ]


def questions(
    train: int = 200, val: int = 32, seed: int = 0, hops: int = 1
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Training and held-out questions, of up to ``hops`` hops: ``{"question": "Who founded Velm?", "answer": ...}``."""
    every = towns()
    split = [[each for town in part for each in _about(town, hops)] for part in (every[:-HELD_OUT], every[-HELD_OUT:])]
    for part, seeded in zip(split, (seed, 0), strict=True):
        random.Random(seeded).shuffle(part)
    return (split[0] * (train // len(split[0]) + 1))[:train], split[1][:val]


def _about(town: dict[str, str], hops: int) -> Iterator[dict[str, Any]]:
    name = town["town"]
    yield {"question": f"Which river does {name} lie on?", "answer": town["river"]}
    yield {"question": f"Who founded {name}?", "answer": town["founder"]}
    yield {"question": f"In which year was {name} founded?", "answer": town["year"]}
    yield {"question": f"What do people visit {name} for?", "answer": town["goods"]}
    if hops > 1:
        yield {"question": f"Which river does the town that {town['founder']} founded lie on?", "answer": town["river"]}
        yield {"question": f"Who founded the town that is visited for its {town['goods']}?", "answer": town["founder"]}
