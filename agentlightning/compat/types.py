"""``agentlightning.types`` as programs import it: the nouns that users build and agents are handed."""

from __future__ import annotations

from agentlightning.agent.resources import LLM, Dataset, NamedResources, PromptTemplate, ProxyLLM
from agentlightning.agent.rollouts import Attempt, Rollout, RolloutConfig
from agentlightning.agent.triplets import Triplet

__all__ = [
    "LLM",
    "Attempt",
    "Dataset",
    "NamedResources",
    "PromptTemplate",
    "ProxyLLM",
    "Rollout",
    "RolloutConfig",
    "Triplet",
]
