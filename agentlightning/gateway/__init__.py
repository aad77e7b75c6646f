"""The endpoint that agents talk to: server, sessions, trace trees; ``wires/`` has one file per API. Never imports
``learning``."""

from agentlightning.gateway.served import Served
from agentlightning.gateway.server import AgentEndpoint, Gateway

__all__ = ["AgentEndpoint", "Gateway", "Served"]
