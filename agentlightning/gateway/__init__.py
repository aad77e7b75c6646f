"""The endpoint that agents talk to: server, sessions, trace trees; ``wires/`` has one file per API. Never imports ``learning``."""

from agentlightning.gateway.policy import Policy
from agentlightning.gateway.server import AgentEndpoint, Gateway
from agentlightning.gateway.usage import AttemptUsage

__all__ = ["AgentEndpoint", "AttemptUsage", "Gateway", "Policy"]
