"""The endpoint that agents talk to: server, sessions, trace trees; ``wires/`` has one file per API. Never imports ``learning``."""

from agentlightning.gateway.server import AgentEndpoint, Gateway
from agentlightning.gateway.session import Policy
from agentlightning.gateway.usage import AttemptUsage

__all__ = ["AgentEndpoint", "AttemptUsage", "Gateway", "Policy"]
