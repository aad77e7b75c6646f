"""The reward of the whole episode goes to each of its calls alike."""

from __future__ import annotations

from agentlightning.credit.rewards import whole_reward
from agentlightning.credit.schemes.base import ROLLOUT, Episode, Scheme, Term


def worth(episode: Episode) -> float:
    return whole_reward(episode.trace, episode.agent)


EPISODE = Scheme(lambda settings: (Term(worth, reads=(ROLLOUT,)),))
