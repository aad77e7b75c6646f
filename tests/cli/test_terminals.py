"""Whatever a terminal, a pipe or its encoding is like, every command shows what it has to say: nothing ends in an
encoding error, markup or a traceback."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from agentlightning.views.screen import Column, Hanging, Listing, Text, fit
from tests.cli.conftest import ROOT, RUN_ID
from tests.cli.test_training import QUICK, invoke
from tests.terminals import AGL, environment, in_terminal
from tests.tiny import letter_tasks, save_letters

NAME = "[red]中\x1b[2J\u202eé[/]"
"""Markup, a character that most encodings lack, a control sequence, one that turns the direction of writing, one that
Latin-1 has."""
FOLDER = "[b]中 [bold]é"
AGENT = """
import json, urllib.request

def agent(task, llm):
    print("printed 中 [red]")
    body = json.dumps({"model": "[blue]中", "max_tokens": 2, "messages": [{"role": "user", "content": task["letter"]}]}).encode()
    request = urllib.request.Request(llm.endpoint + "/chat/completions", body, {"Content-Type": "application/json", "Authorization": "Bearer x"})
    said = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"] or ""
    if task["letter"] == "b":
        raise ValueError("[green]wrong 中\\x1b[2J[/]")
    return float(said.startswith(task["letter"]))
"""
ENCODINGS = {
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "cp1252": {"PYTHONIOENCODING": "cp1252:strict"},
    "utf-8": {"PYTHONIOENCODING": "utf-8"},
    "utf-8, LC_ALL=C": {"LC_ALL": "C"},
}
EVERY = """
import contextlib, io, os, sys
from agentlightning.cli import main
for number, line in enumerate(sys.argv[1].splitlines()):
    os.dup2(os.open(f"out{number}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
    os.dup2(os.open(f"err{number}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    sys.argv = ["agl", *line.split("\\t")]
    code = None
    try:
        main()
    except SystemExit as ended:
        code = ended.code
    except BaseException as error:
        import traceback
        traceback.print_exc()
        sys.stderr.flush()
    open(f"code{number}", "w").write(str(code))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with an agent, tasks, a model and a recorded run, in places with odd names."""
    place = tmp_path_factory.mktemp("odd")
    (place / "agent.py").write_text(AGENT)
    (place / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in letter_tasks(2)))
    (place / "中 [red]").symlink_to(save_letters(tmp_path_factory.mktemp("letters")))
    invoke(
        "eval", f"{place}/agent.py:agent", "--model", f"{place}/中 [red]", "--tasks", f"{place}/tasks.jsonl",
        "--output-dir", str(place / FOLDER),
        "--name", "[red]中é", *QUICK,
    )  # fmt: skip
    return place


def training(output: str) -> list[tuple[tuple[str, ...], int]]:
    """The commands that run the agent, with the exit code each is to have."""
    task = ("agent.py:agent", "--model", "中 [red]", "--tasks", "tasks.jsonl", *QUICK, "--output-dir", output)
    return [
        (("train", *task, "--name", "[red]中é", "--steps", "1", "--group-size", "2"), 0),
        (("train", *task, "--steps", "1", "--group-size", "2", "--json"), 0),
        (("dev", *task, "-n", "2"), 1),
        (("dev", *task, "-n", "1", "--json"), 1),
        (("eval", *task), 0),
    ]


def reading() -> list[tuple[tuple[str, ...], int]]:
    out = ("--output-dir", FOLDER)
    return [
        (("runs", *out), 0),
        (("runs", *out, "--json"), 0),
        (("runs", "--output-dir", f"none {NAME}"), 0),
        (("show", "latest", *out), 0),
        (("show", "latest", *out, "--json"), 0),
        (("show", "latest", "--step", "0", *out), 0),
        (("show", "latest", "val-0-0", *out), 0),
        (("show", "latest", "val-1-0", *out, "--json"), 0),
        (("show", NAME, *out), 2),
        (("trace", "latest", *out), 0),
        (("trace", "latest", *out, "--json"), 0),
        (("trace", "latest", *out, "--out", "[red]中.svg"), 0),
        (("trace", "latest", *out, "--out", NAME), 2),
        (("config",), 0),
        (("config", "--json"), 0),
        (("config", "--reference"), 0),
        (("config", "--set", f"name={NAME}"), 2),
        (("config", "--config", NAME), 2),
        (("config", f"--{NAME}"), 2),
        (("chat", "--model", "中 [red]", "--max-tokens", "2"), 0),
        (("--help",), 0),
    ]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_command_shows_odd_texts_in_every_encoding(encoding: str, folder: Path, tmp_path: Path) -> None:
    wanted = [*reading(), *(training(f"{FOLDER} too") if encoding == "latin-1" else [])]
    lines = "\n".join("\t".join(arguments) for arguments, _ in wanted)
    for name in ("agent.py", "tasks.jsonl", "中 [red]", FOLDER):
        (tmp_path / name).symlink_to((folder / name).resolve())
    ran = subprocess.run(
        [sys.executable, "-c", EVERY, lines], cwd=tmp_path, env=environment(**ENCODINGS[encoding]),
        input="é中\x1b\n/what中\n".encode(),
        capture_output=True, timeout=300, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr.decode(errors="replace")
    name = encoding.partition(",")[0]
    shown: list[str] = []
    for number, (arguments, code) in enumerate(wanted):
        out, err = ((tmp_path / f"{stream}{number}").read_bytes().decode(name) for stream in ("out", "err"))
        assert (tmp_path / f"code{number}").read_text() == str(code), (arguments, out, err)
        assert "Traceback" not in err and "Error in sys" not in err, (arguments, err)
        assert not {"\x1b", "\u202e"} & set(out + err), (arguments, out, err)
        if "--json" in arguments:
            json.loads(out)
        shown.append(out)
    assert ("[red]中" if name == "utf-8" else r"[red]\u4e2d") in shown[0], (
        "a name is no markup, and what the encoding lacks is escaped"
    )
    assert ("none [red]中" if name == "utf-8" else r"none [red]\u4e2d") in shown[2], "so is a folder"
    assert "[green]wrong" in "".join(shown), "and an agent's error"


def test_markup_in_a_text_is_text_on_a_terminal_too(recorded: Path, tmp_path: Path) -> None:
    shown = in_terminal([*AGL, "runs", "--output-dir", str(tmp_path / "[red]x[/red]")], columns=200)
    assert "[red]x[/red]: `agl train` begins one" in shown.lines[0]
    shown = in_terminal([*AGL, "show", "calc", "train-0-0", "--output-dir", str(recorded)], encoding="latin-1")
    assert shown.code == 0 and r"\x1b[31mseven\x07" in shown.text


@pytest.mark.parametrize(
    "arguments",
    [
        ("runs",),
        ("runs", "--json"),
        ("show", "calc"),
        ("show", "calc", "train-0-0", "--json"),
        ("config", "--reference"),
        ("--help",),
    ],
)
def test_a_reader_that_leaves_early_is_no_error(arguments: tuple[str, ...], recorded: Path) -> None:
    place = () if arguments[0] in ("config", "--help") else ("--output-dir", str(recorded))
    read, write = os.pipe()
    os.close(read)
    ran = subprocess.run(
        [*AGL, *arguments, *place],
        stdout=write,
        stderr=subprocess.PIPE,
        env=environment(),
        cwd=ROOT,
        timeout=240,
        check=False,
    )
    os.close(write)
    assert (ran.returncode, ran.stderr) == (0, b"")


def test_a_disk_that_is_full_is_one_line(recorded: Path) -> None:
    for arguments in (("runs",), ("runs", "--json")):
        with open("/dev/full", "w") as full:
            ran = subprocess.run(
                [*AGL, *arguments, "--output-dir", str(recorded)],
                stdout=full,
                stderr=subprocess.PIPE,
                env=environment(),
                cwd=ROOT,
                timeout=240,
                check=False,
            )
        assert ran.returncode == 2
        assert ran.stderr.decode() == "agl: stdout cannot be written: [Errno 28] No space left on device\n"


@pytest.mark.parametrize(("closed", "code"), [("1>&-", 0), ("1>&- 2>&-", 0), ("0<&-", 0), ("2>&-", 2)])
def test_a_stream_that_was_never_open_is_no_error(closed: str, code: int, recorded: Path) -> None:
    what = "show nothing" if code else "runs"
    command = (
        f'"{sys.executable}" -c "from agentlightning.cli import main; main()" {what} --output-dir "{recorded}" {closed}'
    )
    ran = subprocess.run(
        ["sh", "-c", command], env=environment(), cwd=ROOT, capture_output=True, timeout=240, check=False
    )
    assert ran.returncode == code
    assert b"Traceback" not in ran.stdout + ran.stderr and b"agl:" not in ran.stdout


# --------------------------------------------------------------------------- widths

LONG = "a-name-of-sixty-characters-that-somebody-gave-to-a-run-once-x"
LONG_ID = f"{LONG}-20260101-120000-ab12"


@pytest.fixture(scope="module")
def long_names(tmp_path_factory: pytest.TempPathFactory, recorded: Path) -> Path:
    """A recorded run with a name, a model and a folder that are long, and with large numbers."""
    folder = tmp_path_factory.mktemp("long") / "a-folder-with-a-long-name" / "and-another-one-in-it"
    shutil.copytree(recorded, folder)
    with sqlite3.connect(folder / "record.db") as record:
        record.execute(
            "update steps set metrics = replace(metrics, '400.0', '1234567.8'), ledger = replace(ledger, "
            "'\"sampled\":40', '\"sampled\":1234567')"
        )
        config = json.loads(record.execute("select config from runs").fetchone()[0])
        config["config"]["model"]["path"] = "/models/" + "a-long-part/" * 8 + "model-7B-instruct"
        record.execute(
            "update runs set name = ?, folder = ?, config = ?", (LONG, str(folder / RUN_ID), json.dumps(config))
        )
        columns = (
            ("runs", "id"),
            ("rollouts", "run_id"),
            ("steps", "run_id"),
            ("resources", "run_id"),
            ("rollouts", "id"),
            ("step_groups", "run_id"),
            ("intents", "run_id"),
            ("steps", "metrics"),
            ("attempts", "rollout_id"),
            ("rewards", "rollout_id"),
        )
        for table, column in columns:
            record.execute(f"update {table} set {column} = replace({column}, ?, ?)", (RUN_ID, LONG_ID))
    return folder


def test_a_column_that_is_empty_keeps_no_other_from_being_left_out() -> None:
    columns = (Column("must", right=True), Column("may", leave=1), Column("path", leave=2, least=20))
    assert fit(columns, [4, 30, 40], [True, False, False], 40) == {0: 4, 1: 30}
    assert fit(columns, [4, 30, 40], [True, False, False], 30) == {0: 4}


@pytest.mark.parametrize("columns", [8, 20, 40])
def test_a_number_is_whole_also_where_the_table_does_not_fit(columns: int) -> None:
    out = io.StringIO()
    table = Listing(
        (Column("step", right=True), Column("tokens", right=True), Column("validation")),
        [["12", "1,234,567", "0.712 [0.650, 0.768] (47 of 50)"]],
    )
    Console(file=out, width=columns, color_system=None, legacy_windows=False).print(table, crop=False)
    assert all(whole in out.getvalue() for whole in ("step", "tokens", "1,234,567", "0.712 [0.650, 0.768] (47 of 50)"))


@pytest.mark.parametrize("columns", [60, 80, 200])
@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (("runs",), {60: ["run", "status", "steps", "reward"], 80: ["run", "status", "mode", "steps", "reward"],
        200: ["started", "took", "model", "error"]}),
        (("show", "latest"), {60: ["step", "reward", "validation", "failed", "parity"], 80: ["trained", "parity"],
        200: ["tok/s", "checkpoint"]}),
        (("show", "latest", "--step", "1"), {60: ["rollout", "outcome", "reward", "advantage"], 80: ["failure"],
        200: ["failure"]}),
        (("show", "latest", "train-0-0"), {}),
        (("trace", "latest", "train-0-0"), {}),
    ],
)  # fmt: skip
def test_tables_fit_the_terminal(
    arguments: tuple[str, ...], wanted: dict[int, list[str]], columns: int, long_names: Path
) -> None:
    shown = in_terminal(
        [*AGL, *arguments, "--output-dir", "and-another-one-in-it"], columns=columns, cwd=long_names.parent
    )
    assert shown.code == 0, shown.text
    written = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in shown.text.splitlines()]
    path = "/models/" + "a-long-part/" * 8 + "model-7B-instruct"
    whole = (path, LONG_ID)  # to be copied, as commands are
    wide = [
        line
        for line in written
        if len(line) > columns and line.strip() not in whole and not line.startswith(("agl ", "fit("))
    ]
    assert wide == [], "a terminal would wrap it"
    header = next(
        (line for line in written if line.startswith(("run ", "step ", "rollout ")) and len(line.split()) > 3), ""
    )
    assert set(wanted.get(columns, [])) <= set(header.split()), (header, written)
    if arguments == ("show", "latest"):
        assert "2,469,134 sampled" in shown.text, "a number is whole"


def test_columns_and_no_color_and_a_dumb_terminal_are_respected(recorded: Path) -> None:
    show = [*AGL, "show", "calc", "--output-dir", str(recorded)]
    assert "\x1b" in in_terminal(show).text
    assert max(len(line) for line in in_terminal([*show, "--step", "1"], columns=200, COLUMNS="60").lines) <= 60
    assert "\x1b[3" not in in_terminal(show, NO_COLOR="1").text, "no colour; bold and dim are none"
    assert "\x1b" not in in_terminal(show, TERM="dumb").text


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_settings_fit_the_terminal(columns: int, tmp_path: Path) -> None:
    shown = in_terminal([*AGL, "config", "--set", "model.path=/models/" + "a-long-part/" * 20], columns=columns)
    assert shown.code == 0
    written = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in shown.text.splitlines()]
    assert max(map(len, written)) <= columns
    assert all(key in shown.text for key in ("learner.lr", "sampling.max_tokens", "flag --set"))


@pytest.mark.parametrize("columns", [1, 5, 20, 60, 80])
def test_a_line_too_long_goes_on_below_its_words_and_breaks_no_number(columns: int) -> None:
    out = io.StringIO()
    console = Console(file=out, width=columns, color_system=None, legacy_windows=False)
    text = (
        "   Cause: 3 samples ran into max_tokens (2), reward 0.712 [0.650, 0.768] after 1,234 steps in 4.2 s, of "
        "1,000 tokens"
    )
    console.print(Hanging(Text(text)), crop=False)
    lines = out.getvalue().splitlines()
    assert "".join("".join(lines).split()) == "".join(text.split()), "nothing is lost"
    if columns >= 60:
        assert len(lines) > 1 and all(len(line) <= columns and line.startswith(" " * 10) for line in lines[1:])
        joined = "\n".join(lines)
        assert all(kept in joined for kept in ("3 samples", "[0.650, 0.768]", "1,234 steps", "4.2 s", "1,000 tokens"))
