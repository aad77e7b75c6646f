"""Schemes of credit, one file each, and the table of them."""

from __future__ import annotations

from agentlightning.credit.schemes.base import Scheme
from agentlightning.credit.schemes.call import CALL
from agentlightning.credit.schemes.discounted import DISCOUNTED
from agentlightning.credit.schemes.episode import EPISODE
from agentlightning.credit.schemes.mixed import MIXED

SCHEMES: dict[str, Scheme] = {"episode": EPISODE, "call": CALL, "mixed": MIXED, "discounted": DISCOUNTED}
"""By the name that ``credit.scheme`` has for it."""
