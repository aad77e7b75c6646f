"""The episode's reward and the calls' own, each compared with its like and then added:

    A_call = episode_weight * A(episode) + call_weight * A(call's own reward)

A call without a reward of its own has the first part alone, and an episode whose reward is made of its calls' the
second. The sum of an advantage per episode and one per step is that of Feng et al., GiGPO, arXiv:2505.10978, section
4.3; what a step is compared with is simpler here: all calls of the task.
"""

from __future__ import annotations

from agentlightning.credit.rewards import own_reward
from agentlightning.credit.schemes import call
from agentlightning.credit.schemes.base import CALLS, ROLLOUT, Episode, Scheme, Term, Worth


def whole(of: Episode) -> Worth:
    own = own_reward(of.trace, of.agent)
    return {} if own is None else own


MIXED = Scheme(
    lambda settings: (
        Term(whole, reads=(ROLLOUT,), weight=settings.episode_weight),
        Term(call.worth, reads=(CALLS,), weight=settings.call_weight),
    ),
    settings=("episode_weight", "call_weight"),
)
