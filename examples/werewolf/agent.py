"""Nine AgentScope agents at a table. The trained model's return every call as a triplet with a reward of its own;
a fifth of the seats is another model's."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from agentscope.agent import Agent, InjectionConfig
from agentscope.credential import OpenAICredential
from agentscope.message import UserMsg
from agentscope.model import OpenAIChatModel
from game import Game, listed, named, seats_of_the_other

from agentlightning import LLM, NamedResources, Triplet

RULES = (
    "You are Player {number}, a {role}. Werewolves kill at night; the village votes one out each day. Answer briefly."
)
WON = 0.5
"""What each of a player's calls gets besides if its side wins; 1 is for an answer that the rules allow."""


@dataclass
class Player:
    """A seat: an agent with a history of its own, and what it did so far, each step with its own reward."""

    number: int
    role: str
    llm: LLM
    trained: bool
    steps: list[Triplet] = field(default_factory=list)
    heard: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        model = OpenAIChatModel(
            OpenAICredential(api_key=self.llm.api_key or "none", base_url=self.llm.endpoint),
            self.llm.model,
            OpenAIChatModel.Parameters(max_tokens=12),
            stream=False,
            client_kwargs={"http_client": httpx.AsyncClient(event_hooks={"response": [self._keep]}, timeout=300)},
            extra_body={"return_token_ids": True} if self.trained else None,
        )
        self.client = model.client
        self.agent = Agent(
            f"player_{self.number}",
            RULES.format(number=self.number, role=self.role),
            model,
            injection_config=InjectionConfig(inject_runtime_state=False),
        )

    async def _keep(self, response: httpx.Response) -> None:
        await response.aread()
        self.reply: dict[str, Any] = response.json()

    async def ask(self, question: str) -> str:
        """The answer to what was heard since it last spoke, and a question."""
        text = "\n".join([*self.heard, question])
        self.heard.clear()
        said = await self.agent.reply(UserMsg(name="moderator", content=text))
        if self.trained:
            tokens, choice = self.reply["prompt_token_ids"], self.reply["choices"][0]
            self.steps.append(
                Triplet(prompt={"token_ids": tokens}, response={"token_ids": choice["token_ids"]},
                        metadata={"agent_name": self.role})
            )  # fmt: skip
        return said.get_text_content() or ""

    async def choose(self, question: str, among: Sequence[int]) -> int | None:
        """One of some players, None where the answer names none of them first."""
        first = named(await self.ask(f"{question} Answer with one of: {listed(among)}."))[:1]
        self.rated(bool(first) and first[0] in among)
        return first[0] if first and first[0] in among else None

    def rated(self, allowed: bool) -> None:
        if self.trained:
            self.steps[-1].reward = float(allowed)


class Table:
    """The moderator: asks who has to decide, and tells everybody what they may know."""

    def __init__(self, seed: int, llm: LLM, other: LLM) -> None:
        self.game = Game.dealt(seed)
        others = seats_of_the_other(seed)
        self.players = {
            number: Player(number, role, other if number in others else llm, number not in others)
            for number, role in self.game.roles.items()
        }

    def living(self, role: str | None = None) -> list[Player]:
        return [self.players[number] for number in (self.game.of(role) if role else self.game.alive)]

    def tell(self, text: str, to: Iterable[Player] | None = None) -> None:
        for player in to if to is not None else self.living():
            player.heard.append(text)

    async def night(self) -> None:
        game = self.game
        wolves = self.living("werewolf")
        chosen = await asyncio.gather(*(w.choose("Night. Whom do you attack?", game.targets(w.number)) for w in wolves))
        attacked = Counter(target for target in chosen if target).most_common(1)
        victim = attacked[0][0] if attacked else None
        self.tell(f"You attacked {listed([victim])}." if victim else "You attacked nobody.", wolves)
        for seer in self.living("seer"):
            seen = await seer.choose("Night. Whose role do you look at?", game.targets(seer.number))
            if seen:
                self.tell(f"{listed([seen])} is a {game.roles[seen]}.", [seer])
        heal, poison = False, None
        for witch in self.living("witch"):
            heal, poison = await self.brew(witch, victim)
        await self.bury(game.night(victim, heal=heal, poison=poison))

    async def brew(self, witch: Player, victim: int | None) -> tuple[bool, int | None]:
        can = (["heal"] if victim and self.game.heals else []) + (["poison"] if self.game.poisons else []) + ["nothing"]
        attacked = f"{listed([victim])} was attacked" if victim else "Nobody was attacked"
        answer = (await witch.ask(f"Night. {attacked}. Answer with one of: {', '.join(can)}.")).lower()
        said = next((word for word in can if word in answer), None)
        witch.rated(said is not None)
        if said != "poison":
            return said == "heal", None
        return False, await witch.choose("Whom do you poison?", self.game.targets(witch.number))

    async def day(self) -> None:
        for player in self.living():
            speech = await player.ask("Day. Say in one sentence whom you suspect, as Player N.")
            player.rated(bool(set(named(speech)) & set(self.game.alive)))
            told = " ".join(speech.split())
            self.tell(f"Player {player.number} says: {told}", [other for other in self.living() if other is not player])
        voters = self.living()
        votes = await asyncio.gather(
            *(v.choose("Vote: who is put out?", [n for n in self.game.alive if n != v.number]) for v in voters)
        )
        put_out = self.game.vote(dict(zip((voter.number for voter in voters), votes, strict=True)))
        self.tell(f"{listed([put_out])} was put out." if put_out else "Nobody was put out.")
        await self.bury([put_out] if put_out else [])

    async def bury(self, dead: list[int]) -> None:
        """A hunter who dies shoots."""
        self.tell(f"Dead: {listed(dead) or 'nobody'}. Alive: {listed(self.game.alive)}.")
        for number in dead:
            if self.game.roles[number] == "hunter" and self.game.winner is None:
                shot = await self.players[number].choose("You die. Whom do you shoot?", self.game.alive)
                await self.bury(self.game.bury(*([shot] if shot else [])))

    async def play(self, days: int) -> list[Triplet]:
        """A game that is not won by then is nobody's."""
        for _ in range(days):
            for part in (self.night, self.day):
                await part()
                if winner := self.game.winner:
                    return self.steps(winner)
        return self.steps(None)

    def steps(self, winner: str | None) -> list[Triplet]:
        for player in self.players.values():
            if self.game.side(player.number) == winner:
                for step in player.steps:
                    step.reward = (step.reward or 0.0) + WON
        return [step for player in self.players.values() for step in player.steps]


async def werewolf(task: dict[str, int], llm: LLM, resources: NamedResources) -> list[Triplet]:
    """Plays the game that the task's seed deals, for so many days."""
    table = Table(task["seed"], llm, resources["other"])
    try:
        return await table.play(task["days"])
    finally:
        for player in table.players.values():
            await player.client.close()
