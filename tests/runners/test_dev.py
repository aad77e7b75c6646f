"""The dev report names the cause where one is there, and none where none is."""

import json
import textwrap
from array import array
from dataclasses import replace

import pytest
from rich.console import Console

from agentlightning.agent.calling import as_agent
from agentlightning.nouns import (
    Attempt,
    AttemptResult,
    Call,
    CallStatus,
    Failure,
    FinishReason,
    Message,
    Mode,
    Node,
    Reason,
    Reward,
    Rollout,
    SampleRecord,
    SamplingParams,
    Status,
    ToolCall,
)
from agentlightning.records.attempts import AttemptReport
from agentlightning.records.probe import AgentProbe, ClientFound, CodePlace
from agentlightning.records.traces import AttemptTrace, Trace
from agentlightning.records.usage import AttemptUsage, EngineUse, SeenAgent
from agentlightning.runners.check import check_agent
from agentlightning.runners.report import SLOW_ENGINE
from agentlightning.settings.fields import RunConfig
from agentlightning.views.dev.report import dev_report, find
from tests.runners import agents


def report(number=1, reward=1.0, failure=None, **usage):
    rollout = Rollout(f"run-dev-{number}-0", "run", {"q": 1}, Mode.DEV, number, 0, 1, 1)
    attempt = Attempt(f"{rollout.id}.1", rollout.id, 1, "runner", Status.RUNNING, 0.0, 0.0)
    if failure is not None:
        result = AttemptResult(Status.FAILED, failure=failure)
    else:
        result = AttemptResult(
            Status.SUCCEEDED, reward=reward, rewards=(Reward(rollout.id, attempt.id, reward, source="return"),)
        )
    return AttemptReport(rollout, attempt, result, AttemptUsage(**{"calls": 1, **usage}), "printed\n", 0.5)


def call(
    index=0, branch="root", finish=FinishReason.STOP, status=CallStatus.COMPLETE, asked=None, content="four", **more
):
    sample = SampleRecord(1, finish, Message("assistant", content))
    return Call(
        f"c{index}",
        "a",
        index,
        "chat",
        "gpt-4o",
        "main",
        status,
        branch,
        0,
        (sample,),
        asked or {},
        SamplingParams(max_tokens=16),
        10,
        0,
        3,
        **more,
    )


def recorded(item, calls):
    """The trace of an attempt that made these calls, each with a sample of its own."""
    nodes = [
        node
        for i in range(len(calls))
        for node in (
            Node(2 * i, None, False, array("i", [1]), i),
            Node(2 * i + 1, 2 * i, True, array("i", [2]), i, array("f", [-1.0]), version=1),
        )
    ]
    calls = [
        replace(one, prompt_node=2 * i, samples=(replace(one.samples[0], node=2 * i + 1),))
        for i, one in enumerate(calls)
    ]
    attempt = replace(item.attempt, marked=item.result.marked)
    return Trace(item.rollout, (AttemptTrace(attempt, tuple(calls), tuple(nodes)),))


def titles(findings, level=None):
    return [finding.title for finding in findings if level in (None, finding.level)]


def calls_of(*pairs):
    return {item.attempt.id: calls for item, calls in pairs}


PROBE = AgentProbe("agent", "process", frozenset(Mode), frozenset({"llm"}), False)


def test_an_agent_that_works_has_no_findings():
    reports = [report(1, 1.0), report(2, 0.0)]
    assert find(reports, calls_of(*((item, [call(), call(1, "continued")]) for item in reports)), PROBE) == []


def test_malformed_tool_calls_are_counted_beside_those_that_could_be_read():
    item = report(1, 1.0)
    broken = replace(call(), samples=(SampleRecord(1, FinishReason.STOP, Message("assistant", "<tool_call>{"), 2),))
    whole = replace(
        call(1, "continued"),
        samples=(SampleRecord(3, FinishReason.STOP, Message("assistant", "", (ToolCall("c", "f", "{}"),))),),
    )
    [finding] = find([item], calls_of((item, [broken, whole])), PROBE)
    assert (finding.level, finding.title) == ("warns", "Tool calls were malformed")
    assert finding.cause.startswith("2 of 3 tool calls") and "model.tool_format" in finding.remedy
    traces = [Trace(item.rollout, (AttemptTrace(item.attempt, (broken,), ()),))]
    shown = str(dev_report([item], traces, as_agent(agents.plain), RunConfig()))
    assert "call 0  chat gpt-4o  10 -> 3 tokens, stop, root, 2 malformed tool calls" in shown


# --------------------------------------------------------------------------- no call reached the endpoint


async def causes(world, agent, isolation, **settings):
    runners = world.make_runners(agent, isolation=isolation, **settings)
    await runners.start()
    await world.wait(await world.enqueue([{"q": 1}], Mode.DEV))
    await runners.close()
    findings = [
        finding for finding in find(world.reports, {}, runners.probe) if finding.title == "No call reached the endpoint"
    ]
    assert all(finding.level == "blocks" and finding.rollouts for finding in findings)
    return [(finding.cause, finding.remedy) for finding in findings]


def written(tmp_path, text):
    file = tmp_path / "user_agent.py"
    file.write_text(textwrap.dedent(text))
    return f"{file}:agent"


async def test_a_hard_coded_base_url_is_found_with_its_line(world, tmp_path):
    path = written(
        tmp_path,
        """
        from openai import OpenAI
        client = OpenAI(base_url="http://127.0.0.1:9/v1", api_key="x", max_retries=0)
        def agent(task):
            return client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        """,
    )
    ((cause, remedy),) = await causes(world, path, "process")
    assert cause == "user_agent.py:3 says base_url='http://127.0.0.1:9/v1'" and "remove it" in remedy


async def test_a_client_made_at_import_with_another_address_is_found_by_its_name(world, tmp_path):
    path = written(
        tmp_path,
        """
        class Client:
            def __init__(self, base_url):
                self.base_url = base_url
        HOST = "http://127.0.0.1:9"
        client = Client(base_url=HOST + "/v1")
        def agent(task):
            return 1.0
        """,
    )
    ((cause, remedy),) = await causes(world, path, "process")
    assert (
        "client (user_agent.Client) is made when the module is imported, with the base URL http://127.0.0.1:9/v1"
        in cause
    )
    assert "OPENAI_BASE_URL is set before the module is imported" in remedy


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            'os.environ["OPENAI_BASE_URL"] = "http://127.0.0.1:9/v1"',
            "user_agent.py:5 says os.environ['OPENAI_BASE_URL']",
        ),
        ("load_dotenv(override=True)", "user_agent.py:5 says load_dotenv(override=True)"),
        (
            'Chat(openai_api_base="https://api.example/v1")',
            "user_agent.py:5 says openai_api_base='https://api.example/v1'",
        ),
    ],
)
async def test_what_overrides_the_environment_is_found_with_its_line(world, tmp_path, line, says):
    path = written(
        tmp_path,
        f"import os\ndef load_dotenv(override=False): pass\ndef Chat(**_): pass\ndef agent(task):\n    {line}\n    "
        "return 1.0",
    )
    ((cause, _),) = await causes(world, path, "process")
    assert cause == says


async def test_an_agent_that_relies_on_the_environment_in_a_thread_is_told_so(world):
    ((cause, remedy),) = await causes(world, agents.from_environment, "thread")
    assert (
        "takes neither llm nor resources, and isolation='thread' has no environment" in cause
        and "isolation='process'" in remedy
    )


async def test_a_proxy_is_named_as_a_cause(world, monkeypatch):
    monkeypatch.setenv("ALL_PROXY", "http://proxy.example:1")
    (proxy,) = await causes(world, agents.never_calls, "thread")
    assert "ALL_PROXY is set" in proxy[0] and "NO_PROXY=127.0.0.1" in proxy[1]


async def test_where_no_cause_was_seen_none_is_made_up(world):
    def agent(task, llm):
        return 1.0 if llm else 0.0

    ((cause, remedy),) = await causes(world, agent, "thread")
    assert cause.startswith("not found: ") and "print(client.base_url)" in remedy


async def test_a_client_made_from_the_environment_is_no_cause_in_a_process(tmp_path):
    path = written(
        tmp_path,
        """
        import os
        class Client:
            def __init__(self):
                self.base_url = os.environ["OPENAI_BASE_URL"]
        client = Client()
        def agent(task):
            return 1.0
        """,
    )
    probe = await check_agent(as_agent(path))
    (finding,) = find([report(calls=0)], {}, probe)
    assert finding.cause.startswith("not found")


# --------------------------------------------------------------------------- everything else


async def test_real_failures_are_found_with_their_words(world):
    for agent in (agents.raises, agents.other_path, agents.answers, agents.too_long):
        await world.run(agent, mode=Mode.DEV, isolation="thread")
    findings = find(world.reports, {a.attempt.id: await world.store.calls(a.attempt.id) for a in world.reports})
    by_title = {finding.title: finding for finding in findings}
    assert "ValueError: the database is on fire" in by_title["The agent failed"].cause
    assert by_title["The agent failed"].detail.splitlines()[-1] == "ValueError: the database is on fire"
    assert "nonsense" in by_title["The agent asked for a path that is not served"].cause
    assert (
        "returned no reward" in by_title["There is no reward"].cause
        and "grader=" in by_title["There is no reward"].remedy
    )
    assert "context" in by_title["A prompt did not fit the model's context"].cause
    assert all(finding.level == "blocks" for finding in by_title.values())


@pytest.mark.parametrize(
    ("item", "title", "says"),
    [
        (report(calls=2, refused=2, last_error="messages is empty"), "Every call was refused", "messages is empty"),
        (
            report(failure=Failure(Reason.TIMEOUT, "did not return within 3 s")),
            "The agent passed its deadline",
            "within 3 s",
        ),
        (
            report(
                failure=Failure(Reason.TIMEOUT, f"late: 3.1 tokens/s; {SLOW_ENGINE}"),
                engine=EngineUse(180, seconds=57.6, lasted=60.0),
            ),
            "The deadline passed while the engine sampled",
            "late: 3.1 tokens/s",
        ),
        (report(failure=Failure(Reason.BAD_REWARD, "reward is nan")), "There is no reward", "reward is nan"),
        (report(failure=Failure(Reason.EMPTY, "the agent returned no reward")), "There is no reward", "no reward"),
        (report(failure=Failure(Reason.INCOMPLETE, "disk full")), "A call could not be recorded", "disk full"),
        (report(calls=2, refused=2, last_error="no such field"), "Every call was refused", "no such field"),
        (report(calls=1, abandoned=1), "Replies were not read to their end", "1 call left before"),
        (
            report(calls=0, unserved={"responses": "set it to chat"}),
            "The agent asked for a path that is not served",
            "responses",
        ),
    ],
)
def test_each_thing_that_blocks_is_found(item, title, says):
    (finding,) = find([item], {})
    assert (
        (finding.level, finding.title) == ("blocks", title)
        and says in finding.cause
        and finding.rollouts == (item.rollout.id,)
    )


def test_calls_that_were_refused_beside_others_are_a_warning():
    (finding,) = find([report(calls=3, refused=1, last_error="presence_penalty=0.5 is not supported")], {})
    assert (finding.level, finding.title) == ("warns", "Some calls were refused")
    assert finding.cause == "1 of 3 calls; the last refusal says: presence_penalty=0.5 is not supported"


def test_rewards_that_never_differ_are_a_warning():
    assert titles(find([report(1), report(2)], {}), "warns") == ["All rewards are 1"]
    assert find([report(1)], {}) == [] and find([report(1, 0.5), report(2, 0.25)], {}) == []


def test_a_history_that_never_continues_is_a_warning_with_counts():
    item = report()
    (finding,) = find([item], calls_of((item, [call(), call(1, "edited"), call(2, "edited"), call(3, "template")])))
    assert (
        finding.level == "warns"
        and "edited 2, template 1" in finding.cause
        and "differs from what was said" in finding.cause
    )
    assert find([item], calls_of((item, [call(), call(1, "edited"), call(2, "continued")]))) == []


def test_samples_that_are_all_cut_are_a_warning():
    item = report()
    (finding,) = find([item], calls_of((item, [call(finish=FinishReason.LENGTH)])))
    assert finding.level == "warns" and "max_tokens (16)" in finding.cause
    (finding,) = find([item], calls_of((item, [call(finish=FinishReason.LENGTH), call(1, "continued")])))
    assert (finding.level, finding.title) == (
        "notes",
        "Some samples were cut by their length",
    ) and finding.cause.startswith("1 of 2 samples")


def test_sampling_that_was_overruled_is_a_note():
    item = report()
    (finding,) = find([item], calls_of((item, [call(asked={"temperature": 0.0, "top_p": 1.0})])))
    assert finding.level == "notes" and finding.cause == "temperature 0.0 asked, 1.0 used (1 call)"


def test_late_calls_are_a_warning():
    assert titles(find([report(late=3)], {}), "warns") == ["Calls came too late"]


def test_the_same_task_without_a_second_call_is_a_cache_and_not_a_client_that_is_lost():
    first, again = report(1), report(2, calls=0)
    probe = replace(PROBE, caches=(CodePlace("agent.py:4", "@lru_cache"),))
    repeats = {again.rollout.id: first.rollout.id}
    (finding,) = find([first, again], calls_of((first, [call()])), probe, repeats=repeats)
    assert (finding.level, finding.title, finding.rollouts) == (
        "blocks",
        "The same task makes no second call",
        (again.rollout.id,),
    )
    assert (
        finding.cause.startswith(f"{again.rollout.id}, the task of {first.rollout.id} once more,")
        and "agent.py:4 says @lru_cache" in finding.cause
    )
    (finding,) = find([first, again], calls_of((first, [call()])), PROBE, repeats=repeats)
    assert "none was seen in the agent's code" in finding.cause
    assert find([first, report(2)], calls_of((first, [call()])), probe, repeats=repeats) == [], (
        "it called again: no cache"
    )
    failed = report(2, calls=0, failure=Failure(Reason.AGENT_ERROR, "boom"))
    assert "The same task makes no second call" not in titles(find([first, failed], {}, probe, repeats=repeats))
    text = str(dev_report([first, again], [], as_agent(agents.plain), RunConfig(), probe=probe, repeats=repeats))
    assert f"{again.rollout.id} (the task of {first.rollout.id} once more): succeeded" in text


def test_a_second_client_with_an_address_of_its_own_is_named_beside_recorded_calls():
    item = report()
    probe = replace(
        PROBE,
        settings=(
            CodePlace(
                "agent.py:3", "base_url=os.environ['JUDGE'], which is 'https://judge.example/v1'", ".env:2 (JUDGE)"
            ),
        ),
        clients=(
            ClientFound("other", "openai.OpenAI", "https://api.example/v1/", "agent.py:9"),
            ClientFound("same", "x.C", "https://judge", "agent.py:3"),
        ),
    )
    findings = find([item], calls_of((item, [call()])), probe)
    assert [(finding.level, finding.title) for finding in findings] == [
        ("warns", "Some calls may go past the endpoint")
    ] * 2
    assert findings[0].cause.endswith("which stands in .env:2 (JUDGE)") and "(agent.py:9)" in findings[1].cause


def emitted(item, value=1.0, **more):
    return Reward(item.rollout.id, item.attempt.id, value, **more)


def test_emitted_rewards_that_change_no_weight_are_named_with_why():
    item = report(late_rewards=1)
    final = emitted(item, source="return")
    rewards = {item.attempt.id: [emitted(item), emitted(item, call_id="c0"), emitted(item, name="format"), final]}
    (finding,) = find([item], calls_of((item, [call()])), rewards=rewards)
    assert (finding.level, finding.title) == ("warns", "Emitted rewards change no weight") and finding.cause.startswith(
        "4 rewards ("
    )
    for said in (
        "1: the number that the agent returned is final",
        "1: it names a call",
        "1: only those named `reward` count",
        "1: it came after",
    ):
        assert said in finding.cause
    used = report()
    assert find([used], calls_of((used, [call()])), rewards={used.attempt.id: [emitted(used)]}) == [], (
        "the only one is the reward"
    )


def test_what_blocks_comes_first():
    items = [report(1, late=1), report(2, failure=Failure(Reason.TIMEOUT, "late"))]
    assert [finding.level for finding in find(items, {})] == ["blocks", "warns"]


# --------------------------------------------------------------------------- as text


def whole_report():
    good, bad = (
        report(1),
        report(2, failure=Failure(Reason.AGENT_ERROR, "KeyError: 'x' (a.py:3)", "Traceback\nKeyError: 'x'")),
    )
    refused = replace(call(), status=CallStatus.REFUSED, samples=(), error="no")
    traces = [
        recorded(good, (call(), call(1, "continued", content="x" * 200))),
        Trace(bad.rollout, (AttemptTrace(bad.attempt, (refused,), ()),)),
    ]
    return dev_report([good, bad], traces, as_agent(agents.plain), RunConfig(), probe=PROBE)


def test_the_report_reads_as_text_renders_in_colour_and_goes_out_as_json():
    whole = whole_report()
    text = str(whole)
    assert text.splitlines()[0].startswith("Agent tests.runners.agents:plain, isolation process, 2 rollouts")
    assert "run-dev-1-0: succeeded, reward 1 (return), 0.5 s" in text
    assert "call 0  chat gpt-4o  10 -> 3 tokens, stop, root" in text and "call 0  chat gpt-4o  refused" in text
    assert "1 thing would keep it from being trained:" in text
    assert "1. The agent failed (1 of 2 rollouts)\n   Cause: KeyError: 'x' (a.py:3)\n   Do:    mend it" in text
    console = Console(record=True, width=200, force_terminal=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(whole)
    assert console.export_text().strip() == text.strip()
    assert not whole.trainable and json.loads(json.dumps(whole.to_json()))["trainable"] is False


def test_a_report_without_findings_says_so():
    item = report()
    whole = dev_report([item], [], as_agent(agents.plain), RunConfig())
    assert whole.trainable and "Nothing was found that would keep it from being trained, in 1 rollout." in str(whole)


def test_nothing_that_an_agent_says_can_change_the_terminal_or_flood_it() -> None:
    from agentlightning.views.dev.report import WIDTH, AttemptLine, DevReport, Finding

    line = AttemptLine("r", "succeeded", 1.0, "return", 0.1, (), "\x1b[31mred " + "x" * 100_000)
    report = DevReport("a", (line,), (Finding("blocks", "t", "oh \x1b[2J", "mend it", detail="two\n\x1b[31mlines"),))
    assert "\x1b" not in str(report)
    assert max(map(len, str(report).splitlines())) <= WIDTH + 10


# --------------------------------------------------------------------------- several agents


def seen(how, system="You plan.", tools=()):
    return SeenAgent(how, system, tools)


def test_the_agents_of_a_program_are_listed_with_how_they_are_known() -> None:
    first = report(agents={"planner": seen("path"), "agent-0a1b2c": seen("learned", "You check\nplans.", ("search",))})
    second = report(2, agents={"planner": seen("path")})
    calls = (call(agent="planner"), call(1, "new", agent="agent-0a1b2c"), call(2, "new", agent="planner"))
    traces = [recorded(item, calls) for item in (first, second)]
    whole = dev_report(
        [first, second], traces, as_agent(agents.plain), RunConfig(),
        template={"chosen": {"name": "hermes", "sure": False, "why": "x"}, "made_fit": ["replies in a row have an "
                                                                                        "empty turn"]},
    )  # fmt: skip
    text = str(whole)
    assert "2 agents make calls" in text
    assert "  planner (known by its path): 4 calls in 2 rollouts\n      You plan." in text
    assert (
        "  agent-0a1b2c (known by its prompt and tools): 2 calls in 2 rollouts, tools search\n      You check plans."
        in text
    )
    assert "Tool calls are read as hermes (a guess: x)" in text
    assert "Made fit for the chat template, which wants user and assistant to alternate: replies in a row" in text


def test_a_choice_of_agents_that_no_call_is_of_blocks() -> None:
    item = report()
    made = calls_of((item, [call(agent="writer"), call(1, "new", agent="critic")]))
    (finding,) = find([item], made, trained_agents="planner")
    assert (finding.level, finding.cause) == (
        "blocks",
        "calls came from writer, critic",
    ) and "trained_agents='planner'" in finding.title
    assert find([item], made, trained_agents="wri") == []


def marking(item, *names):
    return replace(item, result=replace(item.result, marked=names))


def test_marks_that_no_call_is_of_block_and_one_beside_others_is_a_warning() -> None:
    both = [call(agent="writer"), call(1, "new", agent="critic")]
    lost = marking(report(), "planner")
    (finding,) = find([lost], calls_of((lost, both)))
    assert (finding.level, finding.cause) == (
        "blocks",
        "calls came from writer, critic",
    ) and "(marked: planner)" in finding.title
    some, found = marking(report(), "writer", "planner"), marking(report(2, 0.0), "writer")
    (finding,) = find([some, found], calls_of((some, both), (found, both)))
    assert (finding.level, finding.rollouts) == ("warns", (some.rollout.id,))
    assert finding.title == "Agent 'planner' was marked as trainable and made no call"
    assert find([found], calls_of((found, both))) == []


def test_the_report_says_of_each_agent_whether_it_would_be_trained() -> None:
    agents_met = {name: seen("path") for name in ("planner", "critic", "writer")}
    first, second = marking(report(agents=agents_met), "critic"), report(2, 0.0, agents=agents_met)
    made = (call(agent="planner"), call(1, "new", agent="critic"), call(2, "new", agent="writer"))
    traces = [recorded(item, made) for item in (first, second)]

    def said(**config) -> str:
        return str(dev_report([first, second], traces, as_agent(agents.plain), RunConfig(**config)))

    text = said(trained_agents="plan.*")
    assert "3 agents make calls (chosen to be trained by trained_agents='plan.*' and marked: critic):" in text
    assert "  planner (known by its path): 2 calls in 2 rollouts, trained\n" in text
    assert "  critic (known by its path): 2 calls in 2 rollouts, trained in 1 of 2\n" in text
    assert "  writer (known by its path): 2 calls in 2 rollouts, not trained\n" in text
    assert "  trained_agents='plan.*' is searched in their names, and finds planner\n" in text
    assert "  trained_agents='er' is searched in their names, and finds planner, writer\n" in said(trained_agents="er")
    assert "  trained_agents='x' is searched in their names, and finds none\n" in said(trained_agents="x")
    whole = said(trained_agents="planner")
    assert "  trained_agents='planner' is an agent's name, so it means that one\n" in whole
    assert "writer (known by its path): 2 calls in 2 rollouts, trained in 1 of 2" in said(), (
        "the second rollout chose nobody: it trains all"
    )


def test_an_agent_whose_samples_credit_would_mask_is_not_said_to_be_trained() -> None:
    item = report(agents={name: seen("path") for name in ("planner", "critic")})
    greedy = call(1, "new", agent="critic")
    made = (call(agent="planner"), replace(greedy, used=SamplingParams(temperature=0.0)))
    text = str(dev_report([item], [recorded(item, made)], as_agent(agents.plain), RunConfig(trained_agents=".*")))
    assert "  planner (known by its path): 1 call in 1 rollout, trained\n" in text
    assert "  critic (known by its path): 1 call in 1 rollout, not trained\n" in text


def test_agents_whose_prompts_never_come_twice_are_a_note() -> None:
    items = [report(n, agents={f"agent-00000{n}": seen("learned")}) for n in (1, 2)]
    assert titles(find(items, {}), "notes") == ["Agents have no lasting names"]
    same = [report(n, agents={"agent-000001": seen("learned")}) for n in (1, 2)]
    named = [report(n, agents={f"p{n}": seen("rule")}) for n in (1, 2)]
    assert titles(find(same, {}), "notes") == titles(find(named, {}), "notes") == []
