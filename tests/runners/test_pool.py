from tests.runners import agents


async def test_smoke(world, isolation):
    rollout, report = await world.one(agents.plain, isolation=isolation)
    print(rollout, report)
    assert rollout.reward == 1.0
