"""`agl trace`: the tree of a recorded attempt as lines, as JSON and as a picture; attempts played at a real gateway, or
written through the real store."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import re
import shutil
import sqlite3
import struct
import sys
import xml.etree.ElementTree as ET
from array import array
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st
from matplotlib import font_manager
from rich.cells import cell_len
from rich.console import Console
from typer.testing import CliRunner, Result

from agentlightning import Trainer
from agentlightning.cli.app import app
from agentlightning.cli.reading import last_rollout
from agentlightning.credit import credit_attempt
from agentlightning.credit.step import DEGENERATE
from agentlightning.errors import ConfigError, MissingExtra
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
    RunRecord,
    RunStatus,
    SampleRecord,
    Status,
    StepRecord,
)
from agentlightning.records.credit import AttemptCredit, MaskedRun, NodeCredit
from agentlightning.records.ledger import Ledger
from agentlightning.records.traces import AttemptTrace
from agentlightning.run.last_trace import LastTrace, read_last_trace
from agentlightning.store import open_store
from agentlightning.tracing import last_trace, note_trainer
from agentlightning.views.drawing import FONT, SMALL, Picture, Rect, Words, to_png, to_svg, write_picture
from agentlightning.views.fonts import MONOSPACED, Fonts, fonts_for, spell
from agentlightning.views.runs import RunView, read_run
from agentlightning.views.trace import (
    Credit,
    NodeFacts,
    ShownRollout,
    attempt_of,
    node_facts,
    read_rollout,
    render_rollout,
    render_tree,
    rollout_json,
    tree_json,
)
from agentlightning.views.tree import (
    CELLS,
    FOLDED,
    GIVEN,
    TRAINED,
    UNTRAINED,
    Area,
    Box,
    Layout,
    Size,
    boxes,
    draw_tree,
    lay_out,
)
from tests.cli.conftest import RUN_ID, Agl, call
from tests.gateway.conftest import Build, House, Visit, build
from tests.gateway.scripted import GlassTemplate
from tests.stored_credit import rows_of
from tests.terminals import AGL, in_terminal

__all__ = ["build"]  # a fixture


def invoke(*arguments: str | Path, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def node_lines(text: str) -> list[str]:
    """The lines that stand for nodes, without the tree's guides."""
    return [
        line.strip("│├└─ ") for line in text.splitlines() if re.search(r"\b(given|sampled) +[\d,]+ tokens?  call", line)
    ]


# --------------------------------------------------------------------------- attempts


async def play(house: House) -> Visit:
    """A planner that samples three plans, goes on with the second, thinks again, and misremembers; a coder that it asks
    twice; a call that is too long."""
    house.engine.script = [
        "Plan A.",
        "Plan B.",
        "Plan C.",
        "Done.",
        "Otherwise.",
        "def f(): ...",
        "def g(): ...",
        "What?",
    ]
    visit = await house.open()

    async def ask(agent: str, messages: list[dict[str, Any]], **options: Any) -> Any:
        client = visit.client.with_options(base_url=f"{visit.endpoint.root_url}/agent/{agent}/v1")
        return await client.chat.completions.create(model="m", messages=messages, **options)  # pyright: ignore[reportArgumentType]

    begin = [
        {"role": "system", "content": "You plan."},
        {"role": "user", "content": "Build a boat & <sell> it.\x1b[2J"},
    ]
    await ask("planner", begin, n=3)
    with_plan = [*begin, {"role": "assistant", "content": "Plan B."}]
    reply = await ask("planner", [*with_plan, {"role": "user", "content": "Do it."}])
    await ask("planner", [*with_plan, {"role": "user", "content": "Do it otherwise."}])
    code = [{"role": "system", "content": "You write code."}, {"role": "user", "content": "f"}]
    await ask("coder", code)
    await ask("coder", code)
    await ask("planner", [*begin, {"role": "assistant", "content": "Plan X."}, {"role": "user", "content": "Why?"}])
    house.engine.context_length = 50
    with pytest.raises(openai.BadRequestError):
        await ask("planner", [{"role": "user", "content": "x" * 60}])
    store, rollout = house.store, visit.rollout
    await store.add_reward(Reward(rollout.id, visit.attempt.id, 0.25, "format", "rule", call_id=reply.id))
    await store.add_reward(Reward(rollout.id, visit.attempt.id, 0.5, "style", "emit", agent="coder"))
    await visit.end()
    final = Reward(rollout.id, visit.attempt.id, 1.0, source="return")
    await store.finish(visit.attempt.id, AttemptResult(Status.SUCCEEDED, 1.0, rewards=(final,)))
    metrics = {"step": 0, "advantages": {rollout.id: 0.75}}
    record = StepRecord("run", 0, {"main": 1}, (rollout.group,), metrics, Ledger().to_json())
    await store.put_step(record, await rows_of(store, [rollout.id], {rollout.id: 0.75}))
    return visit


async def view_of(visit: Visit) -> ShownRollout:
    store = visit.house.store
    record = await store.get_run("run")
    assert record is not None
    run = await read_run(store, record)
    return await read_rollout(store, run, next(one for one in run.rollouts if one.id == visit.rollout.id))


def made_up(
    nodes: list[Node], calls: list[Call] | None = None, rewards: list[Reward] | None = None, task: Any = "a task"
) -> ShownRollout:
    """A rollout whose only attempt has these nodes."""
    rollout = Rollout("r-train-0-0", "r", task, Mode.TRAIN, 0, 0, 0, 1, Status.SUCCEEDED, "a", 1.0)
    record = RunRecord("r", "r", "/runs/r", RunStatus.FINISHED, {}, 0.0)
    attempt = Attempt("a", rollout.id, 1, "x", Status.SUCCEEDED, 0.0, 0.0, 1.0)
    return ShownRollout(
        RunView(record, ()), rollout, [AttemptTrace(attempt, tuple(calls or ()), tuple(nodes))], rewards or []
    )


def node(number: int, parent: int | None, sampled: bool, call_index: int = 0, tokens: int = 3) -> Node:
    logprobs = array("f", [-0.5]) * tokens if sampled else None
    return Node(
        number, parent, sampled, array("i", range(tokens)), call_index, logprobs, version=1 if sampled else None
    )


def chain(length: int, *, first: int = 0, parent: int | None = None) -> list[Node]:
    """Turns in a row: given, sampled, given, ..."""
    return [node(first + i, first + i - 1 if i else parent, i % 2 == 1, i // 2) for i in range(length)]


# --------------------------------------------------------------------------- facts and lines


async def test_a_branch_names_its_reason_where_it_branched_and_nowhere_else(build: Build) -> None:
    visit = await play(await build())
    view = await view_of(visit)
    facts = node_facts(view, attempt_of(view), visit.house.template.decode)
    said = {(one.text.rsplit("\n", 1)[-1] if one.node.sampled else one.text, one.node.sampled): one for one in facts}
    by_text = {text: one.branch for (text, sampled), one in said.items() if sampled}
    assert by_text == {
        "Plan A.<|im_end|>": None, "Plan B.<|im_end|>": None, "Plan C.<|im_end|>": None, "Done.<|im_end|>": None,
        "Otherwise.<|im_end|>": None,
        "def f(): ...<|im_end|>": None, "def g(): ...<|im_end|>": "forked", "What?<|im_end|>": None,
    }  # fmt: skip
    given = [(one.call.index, one.branch) for one in facts if one.call is not None and not one.node.sampled]
    assert given == [(0, None), (1, None), (2, "forked"), (3, "new"), (5, "edited")]
    assert [one.sample for one in facts if one.sample is not None] == [(1, 3), (2, 3), (3, 3)]
    assert [one.call.agent for one in facts if one.call is not None and one.branch == "new"] == ["coder"]
    assert [reward.name for one in facts for reward in one.rewards] == ["format"]


@pytest.mark.parametrize("recorded_first", [2, 3, 4])
def test_a_prompt_that_parallel_calls_share_names_the_call_that_began_it_and_counts_the_others(
    recorded_first: int,
) -> None:
    nodes = [node(0, None, False), node(1, 0, True), node(2, None, False, recorded_first, tokens=1234)]
    calls = [call("a", 0, "root", 0, [1])]
    for number, branch, agent in ((2, "forked", "w0"), (3, "new", "w1"), (4, "forked", "w2")):
        nodes.append(node(1 + number, 2, True, number))
        calls.append(replace(call("a", number, branch, 2, [1 + number]), agent=agent))
    view = made_up(nodes, calls)
    shared, *samples = node_facts(view, attempt_of(view))[2:]
    assert shared.call is not None and (shared.call_text, shared.call.agent, shared.branch) == (
        "call 3 and 2 more",
        "w1",
        "new",
    )
    assert [(one.call_text, one.branch) for one in samples] == [
        ("call 2", "forked"),
        ("call 3", None),
        ("call 4", "forked"),
    ]
    out = io.StringIO()
    Console(file=out, width=200, color_system=None).print(render_tree(view, attempt_of(view)))
    assert "1,234 tokens  call 3 and 2 more  w1  new" in out.getvalue() and "call 0  stop" in out.getvalue()
    line = tree_json(view, attempt_of(view))["nodes"][2]
    assert (line["call_index"], line["call_id"], line["agent"], line["more_calls"]) == (3, calls[2].id, "w1", 2)
    assert (box := boxes(node_facts(view, attempt_of(view)))[2]).corner == "call 3" and box.detail == "and 2 more"
    small = boxes([replace(shared, node=node(2, None, False, recorded_first, tokens=1))])[0]
    assert small.corner == "call 3 and 2 more" and not small.detail


async def test_a_template_that_rewrites_history_is_named_as_the_reason(build: Build) -> None:
    house = await build(
        template=GlassTemplate(drops_reasoning=True), script=["<think>hm</think>Yes.", "<think>so</think>No."]
    )
    visit = await house.open()
    reply = await visit.ask("First?")
    said = reply.choices[0].message.content
    await visit.ask(
        [
            {"role": "user", "content": "First?"},
            {"role": "assistant", "content": said},
            {"role": "user", "content": "Then?"},
        ]
    )
    view = await view_of(visit)
    assert [one.branch for one in node_facts(view, attempt_of(view))] == [None, None, "template", None]


def test_a_sample_without_tokens_still_shows_how_it_ended_and_its_reward() -> None:
    empty = replace(
        call("a", 0, "root", 0, [0]), samples=(SampleRecord(0, FinishReason.CANCELLED, Message("assistant")),)
    )
    view = made_up([node(0, None, False)], [empty], [Reward("r-train-0-0", "a", 0.5, "step", call_id=empty.id)])
    out = io.StringIO()
    Console(file=out, width=200, color_system=None).print(render_tree(view, attempt_of(view)))
    assert "call 0  cancelled  reward step 0.500" in out.getvalue()


async def test_every_node_is_one_line_however_narrow_the_terminal(build: Build) -> None:
    visit = await play(await build())
    view = await view_of(visit)
    shown = render_tree(view, attempt_of(view), visit.house.template.decode)
    for width in (60, 250):
        out = io.StringIO()
        Console(file=out, force_terminal=True, color_system=None, width=width, highlight=False).print(shown)
        lines = out.getvalue().splitlines()
        assert len(node_lines(out.getvalue())) == len(await visit.nodes()) == 13
        assert all(cell_len(line) <= width for line in lines)
        in_trees = [line for line in lines if line and line[0] in "│├└ "]
        captions = [line for line in in_trees if re.search(r"branch \d of \d$", line)]
        others = [line for line in lines if line.startswith(("  call 6 refused", "  57 of 73 sampled"))]
        assert len(in_trees) == 13 + len(captions) + len(others), "nothing runs on into a second line"
    text = "\n".join(node_lines(out.getvalue()))
    for wanted in (
        r"given +\d+ tokens  call 0  planner  system↵You plan\.↵user↵",
        r"sampled +8 tokens  call 0  planner  sample 2 of 3  stop  weight \+0\.750  Plan B\.",
        r"sampled +8 tokens  call 0  planner  sample 1 of 3  stop  masked: unused sample  Plan A\.",
        r"sampled +6 tokens  call 1  planner  stop  weight \+0\.750  reward format 0\.250  Done\.",
        r"given +\d+ tokens  call 2  planner  forked  ",
        r"sampled +13 tokens  call 4  coder  forked  stop  ",
        r"given +\d+ tokens  call 5  planner  edited  ",
    ):
        assert re.search(wanted, text), (wanted, text)
    whole = out.getvalue()
    assert (
        "call 6 refused: " in whole
        and "reward style 0.500 (emit, agent coder)" in whole
        and "reward 1.000 (return)" in whole
    )
    assert "conversation (root)" in whole and "conversation (new)" in whole and "conversation (edited)" in whole


def test_the_command_shows_the_tree_of_the_attempt_that_counts(recorded: Path) -> None:
    shown = invoke("trace", "calc", "train-0-0", "--output-dir", recorded).stdout
    lines = node_lines(shown)
    assert len(lines) == 9
    assert lines[1].startswith(
        "sampled    17 tokens  call 0  stop  weight +0.707  reward format 0.500  <calc>3+4</calc><|im_end|>"
    )
    assert lines[7].startswith("given      21 tokens  call 3  new  abandoned  A second") and lines[8].endswith(
        "call 3  abandoned  stop  masked: abandoned  hm"
    )
    assert "attempt 2 failed" in invoke("trace", "calc", "train-0-2", "--output-dir", recorded).stdout
    first = invoke("trace", "calc", "train-0-2", "--attempt", "1", "--output-dir", recorded).stdout
    assert "attempt 1 failed" in first and "masked: retried" in first and "passed its deadline of 5 s" in first


def test_sampled_and_given_lines_have_colours_of_their_own(recorded: Path) -> None:
    text = in_terminal([*AGL, "trace", "calc", "train-0-1", "--output-dir", str(recorded)], columns=160).text
    assert "\x1b[1;32msampled\x1b[0m" in text and "\x1b[32m  8<|im_end|>" in text
    assert "\x1b[2mgiven  " in text and "\x1b[35m  weight -0.707" in text


def test_no_control_character_of_a_text_reaches_the_terminal_or_the_picture(recorded: Path, tmp_path: Path) -> None:
    shown = invoke("trace", "calc", "train-0-0", "--output-dir", recorded).stdout
    assert "\x1b" not in shown and "\x07" not in shown and r"\x1b[31mseven\x07" in shown
    invoke("trace", "calc", "train-0-0", "--out", tmp_path / "t.svg", "--output-dir", recorded)
    assert r"\x1b[31mseven\x07" in (tmp_path / "t.svg").read_text()


def test_json_has_a_line_for_each_node_and_agrees_with_the_whole_record(recorded: Path) -> None:
    tree = json.loads(invoke("trace", "calc", "train-0-0", "--json", "--output-dir", recorded).stdout)
    whole = json.loads(invoke("show", "calc", "train-0-0", "--json", "--output-dir", recorded).stdout)
    (attempt,) = whole["attempts"]
    assert (tree["run"], tree["attempt"]["number"], tree["reward"], tree["picture"]) == (RUN_ID, 1, 1.0, None)
    assert [(n["id"], n["parent"], n["tokens"], n["text"]) for n in tree["nodes"]] == [
        (n["id"], n["parent"], len(n["token_ids"]), n["text"]) for n in attempt["nodes"]
    ]
    assert [n["trained"] for n in tree["nodes"]] == [
        sum(w is not None for w in n.get("weights") or ()) for n in attempt["nodes"]
    ]
    assert [n["branch"] for n in tree["nodes"]] == [None] * 7 + ["new", None]
    assert tree["nodes"][1]["rewards"][0]["name"] == "format" and [reward["name"] for reward in tree["rewards"]] == [
        "reward"
    ]


def test_what_cannot_be_shown_is_refused_in_one_line(recorded: Path, tmp_path: Path) -> None:
    def refused(*arguments: str | Path) -> str:
        text = invoke("trace", "calc", *arguments, "--output-dir", recorded, code=2).stderr
        assert len(text.splitlines()) == 1
        return text

    assert "has no attempt 3; it has attempts 1 to 2" in refused("train-0-2", "--attempt", "3")
    assert "has no attempt 2; it has one attempt, 1" in refused("train-0-0", "--attempt", "2")
    assert "no rollout 'train-0-9'" in refused("train-0-9")
    assert "tree.pdf: a picture is written as .svg or .png" in refused("train-0-0", "--out", "tree.pdf")
    (tmp_path / "file").write_text("")
    for below in ("tree.svg", "deep/tree.svg"):
        said = refused("train-0-0", "--out", tmp_path / "file" / below)
        assert (
            said
            == f"agl: {tmp_path / 'file' / below} cannot be written: {tmp_path / 'file'} is a file, not a folder; name "
            "another file\n"
        )
    (tmp_path / "tree.svg").mkdir()
    assert "tree.svg cannot be written: Is a directory" in refused("train-0-0", "--out", tmp_path / "tree.svg")


@pytest.mark.parametrize("named", [(), ("calc",)])
def test_without_a_rollout_it_is_the_one_that_ended_last(recorded: Path, named: tuple[str, ...]) -> None:
    run = json.loads(invoke("show", "calc", "--step", "0", "--json", "--output-dir", recorded).stdout)
    last = max(run, key=lambda rollout: rollout["ended_at"])["id"]
    assert last == f"{RUN_ID}-val-3-0"
    assert json.loads(invoke("trace", *named, "--json", "--output-dir", recorded).stdout)["id"] == last
    assert last in invoke("trace", *named, "--output-dir", recorded).stdout


def test_marked_agents_are_named_and_the_samples_of_others_are_shown_as_masked() -> None:
    calls = [
        replace(call("a", i, "continued", 2 * i, [2 * i + 1]), agent=agent)
        for i, agent in enumerate(("planner", "critic"))
    ]
    view = made_up(chain(4), calls)
    trace = replace(view.attempts[0], attempt=replace(view.attempts[0].attempt, marked=("critic",)))
    step = StepRecord(
        "r",
        1,
        {"main": 1},
        (view.rollout.group,),
        {"step": 1, "advantages": {view.rollout.id: 0.5}},
        Ledger().to_json(),
    )
    credits = {"a": credit_attempt(trace, 0.5)}
    view = replace(view, run=replace(view.run, steps=(step,)), attempts=[trace], credits=credits)
    out = io.StringIO()
    Console(file=out, width=160, color_system=None).print(render_tree(view, trace))
    lines = node_lines(out.getvalue())
    assert "marked as trainable: critic" in out.getvalue()
    assert (
        "planner" in lines[1]
        and "masked: other agent" in lines[1]
        and "critic" in lines[3]
        and "weight +0.500" in lines[3]
    )
    assert tree_json(view, trace)["attempt"]["marked"] == ["critic"] == rollout_json(view)["attempts"][0]["marked"]


def test_what_a_step_stored_is_shown_and_not_what_its_setting_or_marks_would_give_today() -> None:
    view = made_up(chain(4), [call("a", i, "continued", 2 * i, [2 * i + 1]) for i in range(2)])
    nodes = (
        NodeCredit.of(1, 3, [0.25, 0.5], [MaskedRun(1, 1, "stale")]),
        NodeCredit.of(3, 3, [], [MaskedRun(0, 3, DEGENERATE)]),
    )
    marked = replace(view.attempts[0], attempt=replace(view.attempts[0].attempt, marked=("somebody else",)))
    view = replace(view, attempts=[marked], credits={"a": AttemptCredit(nodes)})
    out = io.StringIO()
    Console(file=out, width=160, color_system=None).print(render_tree(view, marked))
    lines = node_lines(out.getvalue())
    assert "weight +0.250 (1 stale)" in lines[1] and "masked: all rewards of its group are equal" in lines[3]
    shown = rollout_json(view)["attempts"][0]["nodes"]
    assert [node.get("weights") for node in shown] == [None, [0.25, None, 0.5], None, None]


def test_a_step_without_stored_credit_says_so_in_one_line_and_shows_no_weights() -> None:
    view = made_up(chain(4), [call("a", i, "continued", 2 * i, [2 * i + 1]) for i in range(2)])
    step = StepRecord("r", 7, {"main": 1}, (view.rollout.group,), {"step": 7}, Ledger().to_json())
    old = replace(view, run=replace(view.run, steps=(step,)))

    def said(view: ShownRollout) -> str:
        out = io.StringIO()
        for shown in (render_tree(view, view.attempts[0]), render_rollout(view)):
            Console(file=out, width=160, color_system=None).print(shown)
        return out.getvalue() + " ".join(svg_texts(to_svg(draw_tree(view, view.attempts[0]))))

    line = "step 7 has no stored credit (an older version made it): what was trained is not shown"
    assert said(old).count(line) == 3 and "weight" not in said(old) and "masked" not in said(old)
    assert line not in said(view) and "masked: its step is not done" in said(view)


def test_while_no_rollout_has_ended_it_is_the_one_that_was_started_last() -> None:
    def one(number: int, **more: Any) -> Rollout:
        return Rollout(f"r-{number}", "r", {}, Mode.TRAIN, 0, number, 0, 1, **more)

    record = RunRecord("r", "r", "/runs/r", RunStatus.RUNNING, {}, 0.0)
    started = [one(0, attempt_id="a", started_at=2.0), one(1, attempt_id="b", started_at=3.0), one(2)]
    assert last_rollout(RunView(record, (), started)).id == "r-1"
    assert (
        last_rollout(RunView(record, (), [*started, one(3, attempt_id="c", started_at=1.0, ended_at=1.5)])).id == "r-3"
    )
    with pytest.raises(ConfigError, match="run r has no rollout that was begun"):
        last_rollout(RunView(record, (), [one(2)]))


async def test_a_rollout_that_never_ran_has_no_tree(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'record.db'}")
    await store.create_run(RunRecord("run", "run", str(tmp_path / "run"), RunStatus.RUNNING, {}, 0.0))
    await store.enqueue([Rollout("run-train-0-0", "run", {}, Mode.TRAIN, 0, 0, 0, 1)])
    await store.close()
    refused = await asyncio.to_thread(invoke, "trace", "run", "train-0-0", "--output-dir", tmp_path, code=2)
    assert "rollout run-train-0-0 is queued: it has no attempt" in refused.stderr


# --------------------------------------------------------------------------- the picture


def texts(picture: Picture) -> list[str]:
    return [shape.text for shape in picture.shapes if isinstance(shape, Words)]


def svg_texts(svg: str) -> list[str]:
    return ["".join(element.itertext()) for element in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


async def test_the_picture_says_what_the_lines_say(build: Build) -> None:
    visit = await play(await build())
    view = await view_of(visit)
    trace = attempt_of(view)
    picture = draw_tree(view, trace, visit.house.template.decode)
    svg = to_svg(picture)
    said = svg_texts(svg)
    assert said == texts(picture)
    for wanted in (
        "rollout train-0-1: succeeded", "run run   train step 0, group 0", "attempt 1 of 1: succeeded   7 calls   73 "
                                                                            "tokens sampled   advantage +0.750",
        "final reward 1.000", "reward style 0.500 (emit, coder)", "reward format 0.250", "sample 2 of 3", "forked",
        "new", "edited", "planner", "coder",
        "sampled 8 tokens", "call 5", "weight +0.750", "not trained: unused sample", "stop v1", "sampled and trained",
        "sampled, not trained",
        "an earlier prompt, or an earlier turn, once more", "the history came back changed",
    ):  # fmt: skip
        assert wanted in said, (wanted, said)
    assert any(text.startswith("call 6 refused: ") for text in said)
    assert "Build a boat & <sell> it." in " ".join(said), "escaped in the file, whole in the picture"
    kinds = [box.kind for box in boxes(node_facts(view, trace))]
    assert (kinds.count(GIVEN), kinds.count(TRAINED), kinds.count(UNTRAINED)) == (5, 6, 2)
    fills = {shape.fill for shape in picture.shapes if isinstance(shape, Rect) and shape.hover}
    assert fills == {GIVEN.fill, TRAINED.fill, UNTRAINED.fill}
    assert tree_json(view, trace)["nodes"][0]["text"] is None, "without a decoder there is no text"


@pytest.mark.parametrize("name", ["tree.svg", "deep/tree.PNG"])
def test_the_command_draws_a_file_and_names_it(recorded: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / name
    assert invoke("trace", "calc", "train-0-0", "--out", out, "--output-dir", recorded).stdout == f"wrote {out}\n"
    data = out.read_bytes()
    if name.endswith("svg"):
        size = ET.fromstring(data).attrib
        assert float(size["width"]) >= 760 and size["viewBox"] == f"0 0 {size['width']} {size['height']}"
    else:
        width, height = struct.unpack(">II", data[16:24])
        assert data.startswith(b"\x89PNG") and width >= 2 * 760 and height > 500
    tree = json.loads(invoke("trace", "calc", "train-0-0", "--out", out, "--json", "--output-dir", recorded).stdout)
    assert tree["picture"] == str(out)


def test_without_matplotlib_a_png_says_what_to_install_and_an_svg_needs_nothing(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    arguments = ("trace", "calc", "train-0-0", "--output-dir", recorded, "--out")
    assert "pip install matplotlib (an SVG needs nothing" in invoke(*arguments, tmp_path / "t.png", code=2).stderr
    assert not (tmp_path / "t.png").exists()
    invoke(*arguments, tmp_path / "t.svg")


def test_an_svg_is_drawn_without_loading_matplotlib_or_torch(recorded: Path, tmp_path: Path, agl: Agl) -> None:
    ran = agl(
        "trace",
        "calc",
        "train-0-0",
        "--out",
        tmp_path / "t.svg",
        "--output-dir",
        recorded,
        env={"PYTHONPROFILEIMPORTTIME": "1"},
    )
    loaded = {line.rsplit("|", 1)[-1].strip() for line in ran.err.splitlines()}
    assert ran.code == 0 and "agentlightning.views.tree" in loaded
    assert not loaded & {"torch", "transformers", "matplotlib", "numpy"}


def test_an_attempt_without_calls_is_a_picture_that_says_so() -> None:
    view = made_up([])
    assert "no call of it was recorded" in svg_texts(to_svg(draw_tree(view, attempt_of(view))))


def test_a_failed_attempt_says_why_in_its_title(recorded: Path, tmp_path: Path) -> None:
    invoke("trace", "calc", "train-0-2", "--attempt", "1", "--out", tmp_path / "t.svg", "--output-dir", recorded)
    said = svg_texts((tmp_path / "t.svg").read_text())
    assert (
        "rollout train-0-2: failed: agent_error" in said and "attempt 1 of 2: failed   1 call   1 token sampled" in said
    )
    assert "timeout: passed its deadline of 5 s" in said and "agent_error: ValueError: no number in '?'" in said
    assert "not trained: retried" in said


def test_a_long_chain_is_folded_and_its_tokens_still_add_up() -> None:
    calls = [call("a", i, "continued" if i else "root", 2 * i, [2 * i + 1]) for i in range(100)]
    rewards = [Reward("r-train-0-0", "a", 0.5, "step", call_id=calls[i].id) for i in range(100)]
    view = made_up(chain(200), calls, rewards)
    made = boxes(node_facts(view, attempt_of(view)))
    assert [box.kind for box in made] == [GIVEN, UNTRAINED] * 2 + [FOLDED] + [GIVEN, UNTRAINED] * 2
    fold = made[4]
    assert (fold.head, fold.corner, fold.text) == (
        "... 192 nodes ...",
        "calls 2-97",
        ("96 given, 288 tokens", "96 sampled, 288 tokens"),
    )
    assert (fold.note, fold.badges) == (("0 trained, 288 not",), ("96 rewards, sum 48.000",))
    assert [box.parent for box in made] == [None, 0, 1, 2, 3, 4, 5, 6, 7]
    assert len(boxes(node_facts(made_up(chain(9)), attempt_of(made_up(chain(9)))))) == 9, "a short one is drawn whole"


def test_where_something_branches_nothing_is_folded_away() -> None:
    """A branch in the middle of a long chain splits it; each part is folded on its own."""
    nodes = [*chain(60), *chain(4, first=60, parent=29)]
    view = made_up(nodes, [call("a", 0, "root", 0, [1])])
    made = boxes(node_facts(view, attempt_of(view)))
    below = [i for i in range(len(made)) if sum(other.parent == i for other in made) == 2]
    assert len(below) == 1 and made[below[0]].corner.endswith("call 14")
    assert sum(box.kind is FOLDED for box in made) == 2


@pytest.mark.parametrize("shape", ["one", "ten", "chain", "fan", "conversations", "bushy"])
def test_one_ten_and_two_hundred_nodes_make_a_readable_picture(shape: str) -> None:
    """No wider than a dozen boxes, and (for the wide ones) not much higher than that: rows are begun anew."""
    nodes = {
        "one": chain(1),
        "ten": chain(10),
        "chain": chain(200),
        "fan": [node(0, None, False), *(node(i, 0, True, i) for i in range(1, 200))],
        "conversations": [one for i in range(100) for one in chain(2, first=2 * i)],
        "bushy": [node(i, None if i == 0 else (i - 1) // 3, i % 2 == 1, i) for i in range(200)],
    }[shape]
    view = made_up(nodes)
    picture = draw_tree(view, attempt_of(view))
    assert 760 <= picture.width < 3600 and picture.height < 5200, (picture.width, picture.height)
    ET.fromstring(to_svg(picture))


def test_a_picture_too_large_for_a_png_is_made_smaller() -> None:
    data = to_png(Picture(50_000, 400, [], ""))
    assert struct.unpack(">II", data[16:24])[0] <= 30_000


TEXT = st.text(st.characters(exclude_categories=[]), max_size=300)
FACTS = st.builds(
    lambda text, agent, name, value, branch, status: NodeFacts(
        node(0, None, True, tokens=len(text) + 1),
        text,
        Call("c", "a", 0, "chat", "m", "main", status, "root", 0, (), {}, None, agent=agent),
        branch,
        (1, 2),
        "cancelled",
        Credit(None, "nothing in its group to compare it with"),
        [Reward("r", "a", value, name)] * 9,
    ),
    TEXT, TEXT, TEXT, st.floats(), st.sampled_from([None, "tools_changed", "x" * 80]), st.sampled_from(CallStatus),
)  # fmt: skip


@settings(max_examples=60)
@for_all(FACTS, TEXT)
def test_any_text_stays_inside_its_box_and_the_file_stays_xml(facts: NodeFacts, task: str) -> None:
    (box,) = boxes([facts])
    for text in (*box.text, *box.note, box.label, f"{box.agent} {box.detail}"):
        assert cell_len(text) <= CELLS, text
    assert " ".join(box.note) == "not trained: nothing in its group to compare it with"
    assert cell_len(box.head) * FONT + cell_len(box.corner) * SMALL < CELLS * FONT
    calls = [Call("c", "a", 0, "chat", "m", "main", CallStatus.REFUSED, "refused", None, (), {}, None, error=task)]
    view = made_up([facts.node], calls, list(facts.rewards), task)
    picture = draw_tree(view, attempt_of(view), lambda ids: facts.text)
    ET.fromstring(to_svg(picture).encode())
    for shape in picture.shapes:
        if isinstance(shape, Words) and shape.anchor == "start":
            assert shape.x + cell_len(shape.text) * 0.602 * shape.size <= picture.width, shape
        if isinstance(shape, Rect):
            assert shape.area.x >= 0 and shape.area.x + shape.area.width <= picture.width


def test_characters_that_the_font_lacks_do_not_stop_a_png(recwarn: pytest.WarningsRecorder) -> None:
    view = made_up([node(0, None, True)], task="$x_{1$ \\frac{ 中文 😀")
    data = to_png(draw_tree(view, attempt_of(view), lambda ids: "$\\alpha$ 中文 😀 ❤\ufe0f \x00"))
    assert data.startswith(b"\x89PNG") and not recwarn.list


def test_a_png_takes_what_its_font_lacks_from_another_that_is_installed() -> None:
    assert fonts_for(["plain é", "ascii"]) == Fonts((MONOSPACED,), frozenset())
    found = fonts_for(["plain 😀", "עברית", "❤\ufe0f"])
    assert found == Fonts((MONOSPACED, "DejaVu Sans"), frozenset(), frozenset("😀עברית"))
    assert found.of("a 😀") == ([MONOSPACED, "DejaVu Sans"], False) and found.of("é ❤") == ([MONOSPACED], True)


def test_a_font_that_was_installed_after_matplotlib_made_its_list_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = font_manager.fontManager
    monkeypatch.setattr(manager, "ttflist", [entry for entry in manager.ttflist if entry.name == MONOSPACED])
    monkeypatch.setattr(
        font_manager,
        "findSystemFonts",
        lambda: [str(Path(font_manager.__file__).parent / "mpl-data/fonts/ttf/DejaVuSans.ttf")],
    )
    assert fonts_for(["😀"]) == Fonts((MONOSPACED, "DejaVu Sans"), frozenset(), frozenset("😀"))
    assert "DejaVu Sans" in [entry.name for entry in manager.ttflist]


def test_what_no_font_has_is_written_by_number_in_a_png_with_one_warning_and_as_it_is_in_an_svg(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentlightning.views.fonts._characters", lambda file: (MONOSPACED, frozenset(range(0x3000))))
    agent, failure = replace(call("a", 0, "root", 0, [1]), agent="中 \U00060000"), Failure(Reason.AGENT_ERROR, "坏")
    view = made_up(
        [node(0, None, False), node(1, 0, True)],
        [agent],
        [Reward("r-train-0-0", "a", 0.5, "好", call_id=agent.id)],
        task="任务",
    )
    view = replace(view, rollout=replace(view.rollout, status=Status.FAILED, failure=failure))
    view = replace(view, run=replace(view.run, record=replace(view.run.record, id="r中")))
    picture = draw_tree(view, attempt_of(view), lambda ids: "你好，世界 " * 20)
    with caplog.at_level("WARNING", logger="agentlightning"):
        assert to_png(picture).startswith(b"\x89PNG")
    (said,) = caplog.messages
    assert "characters written by number (U+" in said and "install one that does" in said and "SVG" in said
    missing = fonts_for(picture.texts).missing
    assert picture.again is not None
    spelled = picture.again(lambda text: spell(text, missing))
    shown = " ".join(texts(spelled))
    assert not missing.intersection(shown)
    for word in (
        "run rU+4E2D",
        "U+4F60 U+597D U+FF0C",
        "task U+4EFB U+52A1",
        "agent_error: U+574F",
        "reward U+597D 0.500",
    ):
        assert word in shown
    assert "你好，世界" in " ".join(svg_texts(to_svg(picture)))
    for shape in spelled.shapes:
        if isinstance(shape, Words) and shape.anchor == "start":
            assert shape.x + cell_len(shape.text) * 0.602 * shape.size <= spelled.width, shape


def test_a_texts_characters_are_spelled_one_by_one_and_only_those_that_are_missing() -> None:
    assert spell("a你]b好^ 你好", frozenset("你好]^")) == "aU+4F60 U+005DbU+597D U+005E U+4F60 U+597D"
    assert spell("plain 你", frozenset("好")) == "plain 你"


# --------------------------------------------------------------------------- the layout


@st.composite
def trees(draw: st.DrawFn) -> list[Size]:
    count = draw(st.integers(1, 40))
    sizes: list[Size] = []
    for i in range(count):
        parent = draw(st.one_of(st.none(), st.integers(0, i - 1))) if i else None
        label = draw(st.sampled_from([0.0, 0.0, 60.0, 400.0]))
        sizes.append(Size(parent, draw(st.floats(10, 300)), draw(st.floats(10, 200)), label))
    return sizes


def apart(a: Area, b: Area) -> bool:
    e = 1e-6
    return (
        a.x + a.width <= b.x + e or b.x + b.width <= a.x + e or a.y + a.height <= b.y + e or b.y + b.height <= a.y + e
    )


def middle(area: Area) -> float:
    return area.x + area.width / 2


@settings(max_examples=60)
@for_all(trees(), st.floats(100, 3000))
def test_nothing_in_a_layout_overlaps_and_no_line_crosses_a_box(sizes: list[Size], row_width: float) -> None:
    layout = lay_out(sizes, row_width)
    areas = [(i, place.box) for i, place in enumerate(layout.places)]
    areas += [(i, place.label) for i, place in enumerate(layout.places) if place.label is not None]
    for n, (_, one) in enumerate(areas):
        assert one.x >= -1e-6 and one.y >= -1e-6, "inside"
        assert one.x + one.width <= layout.width + 1e-6 and one.y + one.height <= layout.height + 1e-6
        assert all(apart(one, other) for _, other in areas[:n])
    for i, place in enumerate(layout.places):
        for (x0, y0), (x1, y1) in zip(place.edge, place.edge[1:], strict=False):
            assert abs(x0 - x1) < 1e-6 or abs(y0 - y1) < 1e-6, "lines are upright or level"
            segment = Area(min(x0, x1), min(y0, y1), abs(x1 - x0), abs(y1 - y0))
            for owner, area in areas:
                assert apart(segment, area) or (owner == i and area is place.label)


@settings(max_examples=60)
@for_all(trees(), st.floats(100, 3000))
def test_a_layout_is_tidy(sizes: list[Size], row_width: float) -> None:
    """A child is below its parent and its line goes from the one to the other; siblings keep their order; a parent is
    over the middle of its first row."""
    layout = lay_out(sizes, row_width)
    for i, (size, place) in enumerate(zip(sizes, layout.places, strict=True)):
        assert (place.box.width, place.box.height) == (size.width, size.height)
        if size.parent is None:
            assert place.edge == ()
            continue
        above = layout.places[size.parent].box
        assert place.box.y > above.y + above.height
        assert place.edge[0] == pytest.approx((middle(above), above.y + above.height))
        assert place.edge[-1] == pytest.approx((middle(place.box), place.box.y))
        siblings = [layout.places[j].box for j, other in enumerate(sizes) if other.parent == size.parent and j < i]
        assert all(one.y < place.box.y or one.x < place.box.x for one in siblings)
    for i in range(len(sizes)):
        first = [layout.places[j].box for j, size in enumerate(sizes) if size.parent == i]
        row = [box for box in first if box.y == first[0].y]
        if row:
            assert middle(layout.places[i].box) == pytest.approx((middle(row[0]) + middle(row[-1])) / 2)


def test_a_layout_of_any_depth_needs_no_recursion() -> None:
    sizes = [Size(i - 2 if i > 1 else i - 1 if i else None, 50, 20) for i in range(6000)]
    assert isinstance(lay_out(sizes, 1000), Layout)


def test_a_box_is_as_high_as_what_it_says() -> None:
    small = Box(None, GIVEN, "given 1 token", "call 0", "", "", (), (), (), "", "")
    large = Box(
        None,
        TRAINED,
        "sampled 1 token",
        "call 0",
        "a",
        "stop",
        ("x", "y", "z"),
        ("weight",),
        ("reward 1.000",) * 9,
        "",
        "",
    )
    assert small.height < 35 and large.height > 120


def test_a_file_that_is_no_picture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.svg or \.png"):
        write_picture(Picture(1, 1, [], ""), tmp_path / "x.jpg")


# --------------------------------------------------------------------------- the process' own last trace


class Ran:
    """Stands for a Trainer whose run is the recorded one, in which ``train-0-0`` ended last of those that ran."""

    def __init__(self, recorded: Path, own: Path) -> None:
        shutil.copyfile(recorded / "record.db", own / "record.db")
        self.url = f"sqlite:///{own / 'record.db'}"
        with closing(sqlite3.connect(own / "record.db")) as record, record:
            change = "UPDATE rollouts SET ended_at = ended_at + ?, attempt_id = iif(?, attempt_id, NULL) WHERE id = ?"
            record.execute(change, (100.0, True, f"{RUN_ID}-train-0-0"))
            record.execute(change, (200.0, False, f"{RUN_ID}-train-0-2"))

    def last_trace(self) -> LastTrace:
        return read_last_trace(self.url, RUN_ID)


def test_a_trainer_of_which_nothing_has_ended_has_no_last_trace() -> None:
    trainer = Trainer(model="m")
    with pytest.raises(ConfigError, match="no rollout of this Trainer has ended; .* agl trace RUN ROLLOUT"):
        last_trace()
    del trainer
    gc.collect()
    with pytest.raises(ConfigError, match="keep it in a variable"):
        last_trace()


async def test_the_last_trace_is_drawn_as_the_command_draws_it(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where an event loop is running, as in a notebook."""
    trainer = Ran(recorded, tmp_path)
    note_trainer(trainer)
    trace = last_trace()
    assert (trace.rollout_id, trace.attempt) == (f"{RUN_ID}-train-0-0", 1), "the one that ended last and ran"
    monkeypatch.chdir(tmp_path)
    assert trace.visualize("tree_graph") == (Path("tree_graph.svg"), Path("tree_graph.png"))
    await asyncio.to_thread(invoke, "trace", "calc", "train-0-0", "--out", "command.svg", "--output-dir", recorded)
    assert (tmp_path / "tree_graph.svg").read_text() == (tmp_path / "command.svg").read_text()
    assert (tmp_path / "tree_graph.png").read_bytes().startswith(b"\x89PNG")
    assert trace.visualize(tmp_path / "only.svg") == (tmp_path / "only.svg",)


def test_without_matplotlib_the_last_trace_is_an_svg_and_a_warning(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = Ran(recorded, tmp_path)
    note_trainer(trainer)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert last_trace().visualize(tmp_path / "tree_graph") == (tmp_path / "tree_graph.svg",)
    assert "tree_graph.png is not: a PNG needs matplotlib: pip install matplotlib" in caplog.text
    with pytest.raises(MissingExtra):
        last_trace().visualize(tmp_path / "tree.png")


def test_a_failure_with_control_characters_is_shown_harmless() -> None:
    view = made_up(chain(2))
    failure = Failure(Reason.AGENT_ERROR, "boom \x1b[2J\nsecond line")
    attempt = Attempt("a", "r-train-0-0", 1, "x", Status.FAILED, 0.0, 0.0, 1.0, failure)
    view = ShownRollout(view.run, view.rollout, [AttemptTrace(attempt, (), view.attempts[0].nodes)], ())
    out = io.StringIO()
    Console(file=out, width=100, color_system=None).print(render_tree(view, view.attempts[0]))
    assert "\x1b" not in out.getvalue() and r"boom \x1b[2J" in out.getvalue()
    assert r"agent_error: boom \x1b[2J↵second line" in svg_texts(to_svg(draw_tree(view, view.attempts[0])))


def test_a_prompt_shows_its_first_words_and_what_the_user_said_last(recorded: Path, tmp_path: Path) -> None:
    """However long the system prompt is, in the picture and in a line."""
    invoke("trace", "calc", "train-0-0", "--output-dir", recorded, "--out", tmp_path / "t.svg")
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", (tmp_path / "t.svg").read_text())
    at = next(i for i, text in enumerate(texts) if text.startswith("given 902 tokens"))
    box = texts[at + 2 : at + 6]
    assert box[0].startswith("system↵You are a calculator."), "without the template's signs"
    assert box[1].startswith("…") and box[3].endswith("↵user↵3 + 4?")
    for columns in (60, 80, 200):
        lines = in_terminal([*AGL, "trace", "calc", "train-0-0", "--output-dir", str(recorded)], columns=columns).lines
        assert any("call 0" in line and line.endswith("user↵3 + 4?") for line in lines), (columns, lines)
