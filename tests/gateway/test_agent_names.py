"""Which agent of a program makes a call, and that only the chosen ones are trained."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from agentlightning.errors import ConfigError
from agentlightning.gateway.agent_names import LEARNED, name_from_content
from agentlightning.nouns import Tool
from agentlightning.settings.fields import AgentRule, GatewayConfig
from agentlightning.text import clean_name
from tests.gateway.conftest import Build, Visit

SEARCH = {"type": "function", "function": {"name": "search", "description": "finds", "parameters": {"type": "object"}}}


async def ask(
    visit: Visit,
    body: dict[str, Any] | None = None,
    *,
    path: str = "",
    headers: dict[str, str] | None = None,
    query: str = "",
) -> str:
    """The name that the call was recorded under."""
    messages = [{"role": "system", "content": "You plan trips."}, {"role": "user", "content": "q"}]
    async with aiohttp.ClientSession() as client:
        url = f"{visit.endpoint.root_url}{path}/v1/chat/completions{query}"
        async with client.post(url, json={"messages": messages, **(body or {})}, headers=headers or {}) as response:
            assert response.status == 200, await response.text()
    name = (await visit.calls())[-1].agent
    assert name is not None
    return name


WAYS: dict[str, tuple[dict[str, Any], str, str]] = {
    "path": ({"path": "/agent/planner"}, "planner", "path"),
    "encoded path": ({"path": "/agent/the%20planner"}, "the planner", "path"),
    "header": ({"headers": {"X-Agent-Name": "planner"}}, "planner", "header"),
    "bearer": ({"headers": {"Authorization": "Bearer agent:planner"}}, "planner", "api key"),
    "anthropic key": ({"headers": {"x-api-key": "agent:planner"}}, "planner", "api key"),
    "google key": ({"headers": {"x-goog-api-key": "agent:planner"}}, "planner", "api key"),
    "query key": ({"query": "?key=agent:planner"}, "planner", "api key"),
    "metadata": ({"body": {"metadata": {"agent": "planner"}}}, "planner", "body"),
    "user": ({"body": {"user": "agent:planner"}}, "planner", "body"),
    "baggage": ({"headers": {"baggage": "a=b,gen_ai.agent.name=trip%20planner;p=1"}}, "trip planner", "baggage"),
    "rule": ({"body": {"tools": [SEARCH]}}, "searcher", "rule"),
    "rule by prompt": ({"body": {"messages": [{"role": "system", "content": "Now check the plan."}, {"role": "user",
    "content": "q"}]}}, "critic", "rule"),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
async def test_each_way_to_say_who_calls_is_heard(build: Build, way: str) -> None:
    rules = {"searcher": AgentRule(system="^You plan", tools=("search",)), "critic": AgentRule(system="check")}
    house = await build(config=GatewayConfig(agents=rules))
    visit = await house.open()
    asked, name, how = WAYS[way]
    assert await ask(visit, **asked) == name
    usage = await visit.end()
    assert {name: seen.how for name, seen in usage.agents.items()} == {name: how}


async def test_the_more_explicit_way_wins_and_other_users_and_keys_are_no_names(build: Build) -> None:
    house = await build()
    visit = await house.open()
    everything = {"user": "agent:a", "metadata": {"agent": "b"}}
    headers = {"X-Agent-Name": "c", "Authorization": "Bearer agent:d", "baggage": "gen_ai.agent.name=e"}
    assert await ask(visit, everything, path="/agent/f", headers=headers) == "f"
    assert await ask(visit, everything, headers=headers) == "c"
    assert (
        await ask(visit, everything, headers={"Authorization": "Bearer agent:d", "baggage": "gen_ai.agent.name=e"})
        == "d"
    )
    assert await ask(visit, everything, headers={"baggage": "gen_ai.agent.name=e"}) == "b"
    plain = await ask(
        visit, {"user": "someone@example.org", "metadata": {"user": "x"}}, headers={"Authorization": "Bearer sk-123"}
    )
    assert plain == await ask(visit) and plain.startswith(LEARNED)


async def test_an_identical_prompt_and_tool_set_is_one_agent_in_every_attempt(build: Build) -> None:
    house = await build()
    first, second = await house.open(), await house.open()
    assert await ask(first) == await ask(second)
    assert await ask(first, {"tools": [SEARCH]}) != await ask(first)


@pytest.mark.parametrize(
    "path",
    ["/agent//v1", "/agent/v1", "/agent/v1beta", "/agent/", "/agent", "//agent//v1/", "/agent/%20/v1", "/agent/%2F"],
)
async def test_a_path_that_names_no_agent_is_refused_and_says_what_to_write(build: Build, path: str) -> None:
    visit = await (await build()).open()
    async with aiohttp.ClientSession() as client:
        url = f"{visit.endpoint.root_url}{path}/chat/completions"
        async with client.post(
            URL(url, encoded=True), json={"messages": [{"role": "user", "content": "q"}]}
        ) as response:
            told = await response.json()
    assert response.status == 404 and "write /a/KEY/agent/NAME/v1" in told["error"]["message"], told
    assert not await visit.calls()


async def test_an_agent_of_any_other_name_is_found_in_its_path(build: Build) -> None:
    visit = await (await build()).open()
    for name in ("v2", "agent", "v1alpha", "V1", "a"):
        assert await ask(visit, path=f"/agent/{name}") == name


async def test_a_note_in_the_middle_of_a_conversation_makes_no_other_agent(build: Build) -> None:
    house = await build(config=GatewayConfig(agents={"critic": AgentRule(system="check")}))
    visit = await house.open()
    begun: list[dict[str, Any]] = [{"role": "user", "content": "q"}]
    later = [
        *begun,
        {"role": "assistant", "content": "a"},
        {"role": "system", "content": "now check"},
        {"role": "user", "content": "r"},
    ]
    for system in (
        [],
        [{"role": "system", "content": "You plan."}],
        [{"role": "system", "content": "You plan."}, {"role": "developer", "content": "Be good."}],
    ):
        assert await ask(visit, {"messages": system + begun}) == await ask(visit, {"messages": system + later})
    assert len({call.agent for call in await visit.calls()}) == 3


def test_the_order_of_tools_makes_no_other_agent() -> None:
    tools = [Tool("a", "x", {"b": 1, "c": 2}), Tool("b")]
    again = [Tool("b"), Tool("a", "x", {"c": 2, "b": 1})]
    assert name_from_content("s", tools) == name_from_content(" s\n", again) != name_from_content("s", tools[:1])


@given(st.text(max_size=300))
def test_a_name_is_one_bounded_line_without_slashes(text: str) -> None:
    name = clean_name(text)
    assert name is None or (0 < len(name) <= 200 and name.isprintable() and "/" not in name and name == name.strip())


@pytest.mark.parametrize("name", ["a/b", " a", "", "a\nb", "x" * 201])
def test_a_rule_for_what_can_be_no_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be an agent's name"):
        GatewayConfig(agents={name: AgentRule(system="x")})


@pytest.mark.parametrize("pattern", ["(", "[a"])
def test_a_rule_that_is_no_expression_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="is no regular expression"):
        AgentRule(system=pattern)
