"""The rules of werewolf for nine players: three werewolves, three villagers, a seer, a witch and a hunter. Pure: who
decides what, and how they are asked, is the agent's business."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

ROLES = ("werewolf",) * 3 + ("villager",) * 3 + ("seer", "witch", "hunter")


@dataclass
class Game:
    """``roles`` by player, who are numbered from 1. The witch has one potion of each kind."""

    roles: dict[int, str]
    alive: list[int] = field(default_factory=list)
    heals: bool = True
    poisons: bool = True

    @classmethod
    def dealt(cls, seed: int) -> Game:
        roles = random.Random(seed).sample(ROLES, len(ROLES))
        return cls(dict(enumerate(roles, 1)), list(range(1, len(roles) + 1)))

    def of(self, role: str) -> list[int]:
        """The living players of a role."""
        return [player for player in self.alive if self.roles[player] == role]

    def targets(self, player: int) -> list[int]:
        """Whom a player may point at: the living but itself, and no werewolf another one."""
        same = self.of("werewolf") if self.roles[player] == "werewolf" else [player]
        return [other for other in self.alive if other not in same]

    def night(self, attacked: int | None, *, heal: bool = False, poison: int | None = None) -> list[int]:
        """The werewolves attack, the witch may heal or poison, not both. Who died."""
        if heal and (not self.heals or poison is not None or attacked is None):
            raise ValueError("the witch heals once, whom was attacked, and does not poison in the same night")
        if poison is not None and not self.poisons:
            raise ValueError("the witch has no poison left")
        self.heals, self.poisons = self.heals and not heal, self.poisons and poison is None
        dead = [player for player in dict.fromkeys((None if heal else attacked, poison)) if player in self.alive]
        return self.bury(*(player for player in dead if player is not None))

    def vote(self, votes: Mapping[int, int | None]) -> int | None:
        """Whom the living put out, None at a tie or without votes."""
        counts = Counter(target for voter, target in votes.items() if voter in self.alive and target in self.alive)
        first = counts.most_common(2)
        if not first or (len(first) == 2 and first[0][1] == first[1][1]):
            return None
        return self.bury(first[0][0] or 0)[0]

    def bury(self, *players: int) -> list[int]:
        self.alive = [player for player in self.alive if player not in players]
        return list(players)

    @property
    def winner(self) -> str | None:
        """`village` without werewolves, `werewolves` where they are half of the living."""
        wolves = len(self.of("werewolf"))
        if not wolves:
            return "village"
        return "werewolves" if 2 * wolves >= len(self.alive) else None

    def side(self, player: int) -> str:
        return "werewolves" if self.roles[player] == "werewolf" else "village"


def listed(players: Iterable[int | None]) -> str:
    return ", ".join(f"Player {player}" for player in players)


def named(text: str) -> list[int]:
    """The players that a text names, in its order."""
    return [int(number) for number in re.findall(r"Player (\d{1,2})\b", text)]


def seats_of_the_other(seed: int, share: float = 0.2, players: int = len(ROLES)) -> set[int]:
    """The seats that another model plays, drawn by the seed."""
    return set(random.Random(f"seats {seed}").sample(range(1, players + 1), round(share * players)))
