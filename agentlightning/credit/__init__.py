"""Credit: from rewards and a recorded trace tree to one weight for each sampled token, by pure functions. Knows no
tensors and no store."""

from agentlightning.agent.trained_agents import TrainedAgents, together
from agentlightning.credit.assign import CreditedRollout, assign
from agentlightning.credit.unused import last_reward, unused_rewards

__all__ = ["CreditedRollout", "TrainedAgents", "assign", "last_reward", "together", "unused_rewards"]
