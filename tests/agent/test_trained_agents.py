"""What an adapter says of the agents that are trained."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from agentlightning.agent.trained_agents import chosen_by_adapter
from agentlightning.errors import ConfigError


@dataclass
class Adapter:
    agent_match: object = None


def test_the_agents_that_an_adapter_matches_are_those_that_are_trained() -> None:
    assert chosen_by_adapter({"agent_match": "write"}) == chosen_by_adapter(Adapter("write")) == "write"
    for everyone in (None, {}, {"agent_match": None}, Adapter()):
        assert chosen_by_adapter(everyone) is None


@pytest.mark.parametrize(
    ("adapter", "says"),
    [
        ({"agent_macht": "x"}, "'agent_macht' is no setting of an adapter here"),
        ({"agent_match": "x("}, r"agent_match='x\(' is no regular expression"),
        (Adapter(3), "agent_match=3 is no text"),
        (object(), "has no agent_match"),
    ],
)
def test_an_adapter_that_says_no_such_thing_is_refused_by_name(adapter: object, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        chosen_by_adapter(adapter)
