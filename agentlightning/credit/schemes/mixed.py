"""The episode's reward and the calls' own, each compared with its like and then added:

    A_call = episode_weight * A(episode) + call_weight * A(call's own reward)

A call without a reward of its own has the first part alone; one of an episode whose reward is made of its calls' has
the second alone, so that nothing counts twice (credit/step.py). The sum of an advantage per episode and one per step is
that of Feng et al., GiGPO, arXiv:2505.10978, section 4.3; what a step is compared with is simpler here: all calls of
the task.
"""

from __future__ import annotations

from agentlightning.credit.schemes.base import CALLS, ROLLOUT, Scheme, Term
from agentlightning.credit.schemes.call import worth as worth_of_calls
from agentlightning.credit.schemes.episode import worth as worth_of_episode

MIXED = Scheme(
    lambda settings: (
        Term(worth_of_episode, reads=(ROLLOUT,), weight=settings.episode_weight),
        Term(worth_of_calls, reads=(CALLS,), weight=settings.call_weight),
    ),
    settings=("episode_weight", "call_weight"),
)
