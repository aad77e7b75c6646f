"""Each call is worth its own reward; one without is not trained."""

from __future__ import annotations

from agentlightning.credit.rewards import call_rewards
from agentlightning.credit.schemes.base import CALLS, Episode, Scheme, Term


def worth(episode: Episode) -> dict[int, float]:
    own = call_rewards(episode.attempt)
    return {call.index: own[call.index] for call in episode.calls if call.index in own}


CALL = Scheme(lambda settings: (Term(worth, reads=(CALLS,)),))
