"""`agl runs`, `agl show`, `agl config`: what they say of a record written by the real store."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from agentlightning.cli.app import app
from agentlightning.nouns import RunRecord, RunStatus
from agentlightning.text import shorten
from agentlightning.views.runs import RunView, render_run
from agentlightning.views.trace import load_decoder
from tests.cli.conftest import RUN_ID, Agl
from tests.terminals import AGL, in_terminal


def invoke(*arguments: str | Path, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def as_json(*arguments: str | Path) -> Any:
    return json.loads(invoke(*arguments, "--json").stdout)


def test_runs_are_listed_newest_first_with_their_outcome(recorded: Path) -> None:
    shown = invoke("runs", "--output-dir", recorded).stdout
    assert RUN_ID in shown and "stopped" in shown and "0.250 to 0.500" in shown
    (line,) = as_json("runs", "--output-dir", recorded)
    assert (line["id"], line["status"], line["steps"], line["last_reward"], line["algorithm"]) == (
        RUN_ID,
        "stopped",
        2,
        0.5,
        "grpo",
    )


def test_a_folder_without_runs_says_so_and_makes_no_database(tmp_path: Path) -> None:
    assert "no runs in" in invoke("runs", "--output-dir", tmp_path).stdout
    assert as_json("runs", "--output-dir", tmp_path) == []
    assert "there are no runs in" in invoke("show", "x", "--output-dir", tmp_path, code=2).stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [RUN_ID, "calc", "latest", "calc-2026", "FOLDER"])
def test_a_run_is_found_by_id_name_start_of_id_latest_or_folder(recorded: Path, name: str) -> None:
    place = ("--output-dir", recorded) if name != "FOLDER" else ()
    assert as_json("show", recorded / RUN_ID if name == "FOLDER" else name, *place)["id"] == RUN_ID


def test_a_copied_output_folder_is_read_where_it_lies(recorded: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(recorded, tmp_path / "copy")
    assert as_json("show", copy / RUN_ID)["id"] == RUN_ID


def test_an_unknown_run_is_answered_with_the_nearest(recorded: Path) -> None:
    assert "nearest: calc" in invoke("show", "clac", "--output-dir", recorded, code=2).stderr
    assert f"newest: {RUN_ID}" in invoke("show", "qqq", "--output-dir", recorded, code=2).stderr


def test_a_run_shows_its_steps_outcomes_and_a_ledger_that_adds_up(recorded: Path) -> None:
    shown = invoke("show", "calc", "--output-dir", recorded).stdout
    for wanted in (
        "0.250 [0.046, 0.699]", "4 succeeded, 2 failed: agent_error", "80 sampled = 60 trained + 20 masked",
        "20 failed: agent_error",
        "at most 1 versions", "2.0e-06", "sampling 4.0 s, training 2.0 s", "interrupted",
    ):  # fmt: skip
        assert wanted in shown, wanted
    run = as_json("show", "calc", "--output-dir", recorded)
    ledger = run["ledger"]
    assert ledger["sampled"] == ledger["trained"] + sum(ledger["masked"].values())
    assert [step["step"] for step in run["history"]] == [1, 2]
    assert run["validations"][0]["mean"] == 0.25 and run["validations"][0]["scored"] == 4
    assert run["rollouts"]["train"] == {"succeeded": 4, "failed: agent_error": 2}


def test_a_run_says_which_agents_it_trains() -> None:
    config = {"config": {"trained_agents": "planner|critic"}, "mode": "train"}
    record = RunRecord("r", "r", "/runs/r", RunStatus.FINISHED, config, 0.0, 1.0)
    out = io.StringIO()
    Console(file=out, width=100, color_system=None).print(render_run(RunView(record, ())))
    assert "trained agents  planner|critic" in out.getvalue()


def test_a_steps_rollouts_are_listed_with_reward_advantage_and_failure(recorded: Path) -> None:
    shown = invoke("show", "calc", "--step", "1", "--output-dir", recorded).stdout
    assert "train-0-0" in shown and "+0.707" in shown and "ValueError: no number" in shown
    assert [line["advantage"] for line in as_json("show", "calc", "--step", "1", "--output-dir", recorded)] == [
        0.707,
        -0.707,
        None,
    ]
    assert "it has steps 0 to 2" in invoke("show", "calc", "--step", "9", "--output-dir", recorded, code=2).stderr


# --------------------------------------------------------------------------- one rollout


def test_a_trace_tree_tells_sampled_from_given_with_weights_and_rewards_beside(recorded: Path) -> None:
    shown = invoke("show", "calc", "train-0-0", "--output-dir", recorded).stdout
    lines = [line.strip("│├└─ ") for line in shown.splitlines()]
    for wanted in (
        "given    902 tokens", "sampled  17 tokens  weight +0.707", "<calc>3+4</calc><|im_end|>",
        "reward format 0.500 (emit, because well formed)",
        "branch 1 of 2", "branch 2 of 2", "conversation (root)", "conversation (new)",
        "call 4 refused: prompt too long", "reward 1.000 (return)",
    ):  # fmt: skip
        assert any(wanted in line for line in lines), wanted
    assert any("masked: unused sample" in line for line in lines)
    assert any("masked: abandoned" in line for line in lines)
    order = [
        shown.index(text) for text in ("<calc>", "Result: 7", "It is 7.", "Sure?", "Yes.", "A second conversation")
    ]
    assert order == sorted(order)


def test_long_given_texts_are_shortened_unless_asked_for_whole(recorded: Path) -> None:
    assert "characters ...]" in invoke("show", "calc", "train-0-0", "--output-dir", recorded).stdout
    whole = invoke("show", "calc", "train-0-0", "--full", "--output-dir", recorded).stdout
    assert "characters ...]" not in whole and whole.count("You are a calculator.") == 40
    assert shorten("x" * 1000, 10) == "xxxxx [... 990 characters ...] xxxxx"


def test_sampled_text_cannot_reach_the_terminals_controls(recorded: Path) -> None:
    shown = invoke("show", "calc", "train-0-0", "--output-dir", recorded).stdout
    assert "\x1b" not in shown and "\x07" not in shown
    assert r"\x1b[31mseven\x07" in shown


def test_sampled_tokens_have_a_colour_of_their_own(recorded: Path) -> None:
    text = in_terminal([*AGL, "show", "calc", "train-0-1", "--output-dir", str(recorded)], columns=120).text
    assert "\x1b[32m8<|im_end|>" in text, "sampled is green"
    assert "\x1b[2m3 + 4?" in text, "given is dim"
    assert "\x1b[35m  weight -0.707" in text


def test_every_attempt_of_a_retried_rollout_is_shown_and_none_of_its_tokens_counts_as_trained(recorded: Path) -> None:
    shown = invoke("show", "calc", "train-0-2", "--output-dir", recorded).stdout
    assert "attempt 1 failed" in shown and "attempt 2 failed" in shown and "masked: retried" in shown
    assert "passed its deadline of 5 s" in shown and "agent.py:3" in shown
    assert "weight" not in shown


def test_a_rollout_as_json_has_every_token_with_logprob_and_weight(recorded: Path) -> None:
    rollout = as_json("show", "calc", f"{RUN_ID}-train-0-0", "--output-dir", recorded)
    (attempt,) = rollout["attempts"]
    nodes = {node["id"]: node for node in attempt["nodes"]}
    assert len(nodes) == 9 and len(attempt["calls"]) == 5
    assert nodes[1]["text"] == "<calc>3+4</calc><|im_end|>" and nodes[1]["sampled"]
    assert len(nodes[1]["token_ids"]) == len(nodes[1]["logprobs"]) == len(nodes[1]["weights"])
    assert nodes[1]["weights"] == pytest.approx([0.707] * 17)
    assert nodes[4]["masked"] == "unused sample" and nodes[4]["weights"] is None
    assert "weights" not in nodes[0]
    assert [reward["name"] for reward in rollout["rewards"]] == ["format", "reward"]


def test_without_the_models_tokenizer_ids_are_shown(recorded: Path, tmp_path: Path) -> None:
    assert load_decoder(None) is load_decoder("") is load_decoder(str(tmp_path)) is None
    copy = shutil.copytree(recorded, tmp_path / "copy")
    import sqlite3

    with sqlite3.connect(copy / "record.db") as db:
        db.execute("update runs set config = replace(cast(config as text), '/model', '/gone')")
    shown = invoke("show", copy / RUN_ID, "train-0-1").stdout
    assert "token ids are shown" in shown and "<|im_end|>" not in shown


def test_an_unknown_rollout_is_answered_with_near_ones(recorded: Path) -> None:
    message = invoke("show", "calc", "train-0-9", "--output-dir", recorded, code=2).stderr
    assert "no rollout 'train-0-9'; e.g. train-0-" in message
    assert (
        "leave one of them out"
        in invoke("show", "calc", "train-0-0", "--step", "1", "--output-dir", recorded, code=2).stderr
    )


# --------------------------------------------------------------------------- settings and the program itself


def test_config_prints_every_value_with_its_source(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("steps = 3\n")
    values = as_json("config", "--config", file, "--set", "learner.lr=1e-3")
    assert values["steps"] == {"value": 3, "source": "file run.toml line 1"}
    assert values["learner.lr"] == {"value": 0.001, "source": "flag --set"}
    assert values["seed"] == {"value": 0, "source": "default"}
    assert "flag --set" in invoke("config", "--set", "learner.lr=1e-3").stdout


def test_a_key_given_twice_or_without_a_value_is_refused() -> None:
    assert "expected KEY=VALUE" in invoke("config", "--set", "learner.lr", code=2).stderr
    assert (
        "seed is given twice, by --set and by --set"
        in invoke("config", "--set", "seed=1", "--set", "seed=2", code=2).stderr
    )


def test_an_error_is_one_line_on_stderr_and_debug_shows_the_traceback(agl: Agl) -> None:
    plain = agl("show", "x")
    assert plain.code == 2 and plain.out == ""
    assert plain.err.startswith("agl: no run 'x'") and len(plain.err.splitlines()) == 1
    debug = agl("show", "x", "--debug")
    assert debug.code == 1 and "Traceback" in debug.err and "ConfigError" in debug.err


def test_several_wrong_settings_are_one_line_each(agl: Agl) -> None:
    ran = agl("config", "--set", "sted=1", "--set", "learner.lr=fast", env={"AGL_LEARNER__EPZ": "1"})
    assert ran.code == 2
    assert [line.split(" ")[0] for line in ran.err.removeprefix("agl: ").splitlines()] == [
        "learner.epz",
        "sted",
        "learner.lr",
    ]


def test_the_program_knows_its_version_and_starts_light(agl: Agl) -> None:
    import agentlightning

    assert agl("--version").out.strip() == agentlightning.__version__
    assert "Usage: agl" in agl("--help").out
    ran = agl("runs", env={"PYTHONPROFILEIMPORTTIME": "1"})
    loaded = {line.rsplit("|", 1)[-1].strip() for line in ran.err.splitlines()}
    assert "agentlightning.cli.reading" in loaded
    assert not loaded & {"torch", "transformers", "sqlalchemy", "matplotlib"}


def test_output_can_be_piped_into_what_stops_reading(recorded: Path) -> None:
    import subprocess
    import sys

    program = (
        "from agentlightning.cli import main; import sys; sys.argv[1:] = ['show', 'calc', '--json', "
        f"'--output-dir', {str(recorded)!r}]; main()"
    )
    reader = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert reader.stdout is not None and reader.stderr is not None
    reader.stdout.readline()
    reader.stdout.close()
    assert "Traceback" not in reader.stderr.read().decode()
    reader.stderr.close()
    reader.wait(30)
