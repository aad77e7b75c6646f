"""Credit: from rewards and a recorded trace tree to one weight for each sampled token, by pure functions. Knows no tensors and no store."""

from agentlightning.credit.assign import CreditedRollout, assign
from agentlightning.credit.chosen import Chosen, together
from agentlightning.credit.unused import last_reward, unused_rewards

__all__ = ["Chosen", "CreditedRollout", "assign", "last_reward", "together", "unused_rewards"]
