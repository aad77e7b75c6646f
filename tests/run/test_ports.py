"""The ports of a run over a real store: versions of resources, and a group that is waited for with a deadline."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any, cast

import pytest

from agentlightning.agent.resources import NamedResources, PromptTemplate
from agentlightning.errors import ConfigError, RunFailed
from agentlightning.nouns import AttemptResult, Mode, Status
from agentlightning.records.progress import SilentView
from agentlightning.run.resources import RunResources
from agentlightning.run.rollouts import RunRollouts, Watch
from agentlightning.run.stopping import Stop
from agentlightning.settings.fields import RunConfig
from agentlightning.store import Store, open_store
from tests.store.make import run


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = open_store(f"sqlite:///{tmp_path}/record.db")
    await store.create_run(run())
    yield store
    await store.close()


async def test_a_published_version_is_nobodys_before_it_is_promoted(store: Store):
    resources = await RunResources.open(store, "r", NamedResources({"limit": 3, "prompt": PromptTemplate("a")}))
    published = await resources.publish({"prompt": PromptTemplate("b")})
    assert (resources.current, published) == (1, 2)
    assert (await resources.values())["prompt"]["template"] == "a"
    await resources.promote(published)
    assert resources.current == 2 and (await resources.values())["prompt"]["template"] == "b"
    assert (await resources.values())["limit"] == {"value": 3}, "what it does not name stays"
    with pytest.raises(ConfigError, match="resources have no version 3: there are 1 to 2"):
        await resources.promote(3)


class HeldDesk:
    """A desk whose runners hold every rollout for good."""

    def serve(self, mode: Mode, groups: Collection[int] | None) -> None:
        self.served = (mode, groups)

    def holds(self, rollout_ids: Collection[str]) -> bool:
        return True


class LivingPool:
    def raise_if_dead(self) -> None:
        """It lives."""


async def rollouts_of(store: Store, **config: Any) -> RunRollouts:
    resources = await RunResources.open(store, "r", NamedResources())
    watch = Watch(Stop(), SilentView(), cast("Any", LivingPool()))
    desk = cast("Any", HeldDesk())
    return RunRollouts("r", RunConfig(**config), store, desk, cast("Any", None), cast("Any", None), resources, watch)


async def finish_one(store: Store) -> None:
    ((_, attempt),) = await store.lease("r", "runner", limit=1, seconds=60)
    await store.finish(attempt.id, AttemptResult(Status.SUCCEEDED, reward=1.0))


@pytest.mark.parametrize(("quorum", "said"), [(0.5, "after its deadline"), (1.0, "at twice its deadline")])
async def test_a_group_past_its_deadline_goes_on_with_its_quorum_and_at_twice_that_without(
    store: Store, quorum: float, said: str
):
    rollouts = await rollouts_of(store, quorum=quorum, group_deadline=0.01)
    await rollouts.ask(["task"], 2)
    await finish_one(store)
    first, second = (await rollouts.next()).traces
    assert (first.rollout.status, first.rollout.reward) == (Status.SUCCEEDED, 1.0)
    assert second.rollout.status is Status.CANCELLED and second.rollout.failure is not None
    assert second.rollout.failure.message == f"group 0 went on {said}, with 1 of 2 rollouts"


async def test_groups_are_numbered_in_the_order_of_asking_and_each_is_taken_once(store: Store):
    rollouts = await rollouts_of(store)
    await rollouts.ask(["a", "b"], 1)
    assert (rollouts.outstanding, rollouts.place().number, rollouts.place().asked) == (2, 2, (0, 1))
    await finish_one(store)
    group = await rollouts.next()
    assert (group.number, group.traces[0].rollout.task, group.traces[0].rollout.resources_version) == (0, "a", 1)
    assert (rollouts.outstanding, rollouts.place().asked) == (1, (1,))
    again = await rollouts_of(store)
    await again.go_on(rollouts.place())
    await finish_one(store)
    assert (await again.next()).traces[0].rollout.task == "b", "a resumed run takes what was asked for before"
    with pytest.raises(RunFailed, match="no group to wait for"):
        await again.next()
