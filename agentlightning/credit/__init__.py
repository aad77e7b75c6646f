"""Credit: from rewards and a recorded trace tree to one weight for each sampled token, by pure functions. Knows no
tensors and no store."""

from agentlightning.agent.trained_agents import TrainedAgents, together
from agentlightning.credit.attempt import credit_attempt
from agentlightning.credit.rewards import last_reward
from agentlightning.credit.settings import CreditSettings
from agentlightning.credit.step import CreditRule, StepCredit, credit_rows, credit_step
from agentlightning.credit.trees import train_batch, train_tree
from agentlightning.credit.unused import unused_rewards

__all__ = [
    "CreditRule",
    "CreditSettings",
    "StepCredit",
    "TrainedAgents",
    "credit_attempt",
    "credit_rows",
    "credit_step",
    "last_reward",
    "together",
    "train_batch",
    "train_tree",
    "unused_rewards",
]
