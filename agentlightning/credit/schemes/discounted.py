"""Each call is worth what came from it on, discounted by how many calls lie between:

    G_t = r_t + discount * G_{t+1}

with the call's own reward r_t and, at the last call, the episode's besides, unless that is made of the calls'. Sutton
and Barto, Reinforcement Learning, section 3.3.
"""

from __future__ import annotations

from functools import partial

from agentlightning.credit.rewards import call_rewards, own_reward
from agentlightning.credit.schemes.base import CALLS, ROLLOUT, Episode, Scheme, Term


def worth(episode: Episode, *, discount: float) -> dict[int, float]:
    own = call_rewards(episode.attempt)
    ahead = own_reward(episode.trace, episode.agent) or 0.0
    returns: dict[int, float] = {}
    for call in reversed(episode.calls):
        returns[call.index] = own.get(call.index, 0.0) + ahead
        ahead = discount * returns[call.index]
    return returns


DISCOUNTED = Scheme(
    lambda settings: (Term(partial(worth, discount=settings.discount), reads=(ROLLOUT, CALLS)),),
    settings=("discount",),
)
