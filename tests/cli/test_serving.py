"""`agl serve`, as a real process, and models named by `latest`, a run or a checkpoint: what unchanged clients get of a
tiny model."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import anthropic
import openai
import pytest
from google import genai
from google.genai.types import HttpOptions
from typer.testing import CliRunner, Result

from agentlightning.cli.app import app
from tests.cli.conftest import ROOT
from tests.tiny import save_letters


@dataclass
class Served:
    process: subprocess.Popen[str]
    variables: dict[str, str]
    said: str

    def openai(self, **changed: str) -> openai.OpenAI:
        given = {"base_url": self.variables["OPENAI_BASE_URL"], "api_key": self.variables["OPENAI_API_KEY"], **changed}
        return openai.OpenAI(**given, max_retries=0)

    def anthropic(self, key: str | None = None, url: str | None = None) -> anthropic.Anthropic:
        return anthropic.Anthropic(
            base_url=url or self.variables["ANTHROPIC_BASE_URL"],
            api_key=key or self.variables["ANTHROPIC_API_KEY"],
            max_retries=0,
        )

    def gemini(self) -> genai.Client:
        options = HttpOptions(base_url=self.variables["GOOGLE_GEMINI_BASE_URL"])
        return genai.Client(api_key=self.variables["GEMINI_API_KEY"], vertexai=False, http_options=options)

    def end(self) -> tuple[int, str, str]:
        self.process.send_signal(signal.SIGINT)
        out, err = self.process.communicate(timeout=600)
        return self.process.returncode, out, err


def start(place: Path, *arguments: str) -> Served:
    program = [
        sys.executable,
        "-c",
        "from agentlightning.cli import main; main()",
        "serve",
        *arguments,
        "--set",
        "threads=1",
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(program, cwd=place, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    variables: dict[str, str] = {}
    for line in process.stdout:
        name, _, value = line.removeprefix("export ").strip().partition("=")
        if line.startswith("export "):
            variables[name] = value
        elif "answers as" in line:
            return Served(process, variables, line)
    raise AssertionError(process.communicate())


def invoke(*arguments: str, code: int = 0, stdin: str = "") -> Result:
    result = CliRunner().invoke(app, [*arguments], input=stdin)
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_letters(tmp_path_factory.mktemp("served") / "letters")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Served]:
    found = start(tmp_path_factory.mktemp("serving"), str(model), "--port", "0")
    yield found
    if found.process.poll() is None:
        found.end()


ASK = [{"role": "user", "content": "a"}]


def test_the_openai_client_is_answered_on_its_three_apis_streamed_and_not_with_and_without_v1(served: Served) -> None:
    for url in (served.variables["OPENAI_BASE_URL"], served.variables["OPENAI_BASE_URL"].removesuffix("/v1")):
        client = served.openai(base_url=url)
        assert [one.id for one in client.models.list()] == ["letters"]
        greedy = {"model": "letters", "temperature": 0, "max_tokens": 4}
        whole = client.chat.completions.create(messages=ASK, **greedy)  # pyright: ignore[reportArgumentType, reportCallIssue]
        streamed = client.chat.completions.create(messages=ASK, stream=True, **greedy)  # pyright: ignore[reportArgumentType, reportCallIssue]
        assert (
            "".join(chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices)
            == whole.choices[0].message.content
        )
        assert whole.usage is not None and whole.usage.completion_tokens <= 4
        text = client.completions.create(model="letters", prompt="a", max_tokens=4, temperature=0)
        pieces = client.completions.create(model="letters", prompt="a", max_tokens=4, temperature=0, stream=True)
        assert "".join(chunk.choices[0].text for chunk in pieces if chunk.choices) == text.choices[0].text
        first = client.responses.create(model="letters", input="a", max_output_tokens=4, temperature=0)
        with client.responses.stream(model="letters", input="a", max_output_tokens=4, temperature=0) as stream:
            assert (
                "".join(event.delta for event in stream if event.type == "response.output_text.delta")
                == first.output_text
            )
        second = client.responses.create(model="letters", input="b", previous_response_id=first.id, max_output_tokens=4)
        assert (
            second.usage is not None
            and first.usage is not None
            and second.usage.input_tokens > first.usage.input_tokens
        )


def test_the_anthropic_and_the_gemini_client_are_answered_streamed_and_not(served: Served) -> None:
    greedy = {"model": "claude-x", "max_tokens": 4, "extra_body": {"temperature": 0}}
    for url in (None, served.variables["ANTHROPIC_BASE_URL"] + "/v1"):
        client = served.anthropic(url=url)
        whole = client.messages.create(messages=[{"role": "user", "content": "a"}], **greedy)  # pyright: ignore
        with client.messages.stream(messages=[{"role": "user", "content": "a"}], **greedy) as stream:  # pyright: ignore
            assert stream.get_final_text() == "".join(block.text for block in whole.content if block.type == "text")
        assert [one.id for one in client.models.list()] == ["letters"]
    gemini = served.gemini()
    config = {"max_output_tokens": 4, "temperature": 0}
    said = gemini.models.generate_content(model="gemini-x", contents="a", config=config).text  # pyright: ignore
    assert said == "".join(
        chunk.text or ""
        for chunk in gemini.models.generate_content_stream(model="gemini-x", contents="a", config=config)  # pyright: ignore
    )
    assert [one.name for one in gemini.models.list()] == ["models/letters"]


def test_a_key_that_is_wrong_or_missing_is_refused_in_the_clients_own_shape(served: Served) -> None:
    with pytest.raises(openai.AuthenticationError, match="the key that was sent is not valid"):
        served.openai(api_key="wrong").chat.completions.create(model="m", messages=ASK)  # pyright: ignore
    with pytest.raises(anthropic.AuthenticationError):
        served.anthropic(key="wrong").messages.create(
            model="m", max_tokens=2, messages=[{"role": "user", "content": "a"}]
        )
    with pytest.raises(openai.NotFoundError, match="there is nothing at"):
        served.openai().post("/nowhere", cast_to=object)
    with pytest.raises(openai.NotFoundError):
        served.openai().post("/rewards", cast_to=object, body={"value": 1.0})


def test_many_clients_at_once_are_answered_and_a_seed_of_their_own_repeats_a_reply(served: Served) -> None:
    client = served.openai()

    def ask(seed: int | None) -> str | None:
        reply = client.chat.completions.create(model="m", messages=ASK, max_tokens=8, temperature=1.5, seed=seed)  # pyright: ignore
        return reply.choices[0].message.content

    with ThreadPoolExecutor(12) as pool:
        free = list(pool.map(ask, [None] * 24))
        fixed = list(pool.map(ask, [7] * 6))
    assert len(set(free)) > 1, "without a seed replies differ"
    assert len(set(fixed)) == 1


def test_ctrl_c_ends_a_server_in_one_line_and_names_were_warned_of_once(tmp_path: Path, model: Path) -> None:
    found = start(tmp_path, str(model), "--port", "0", "--key", "mine")
    assert found.variables["OPENAI_API_KEY"] == "mine" and found.variables["OPENAI_BASE_URL"].startswith(
        "http://127.0.0.1:"
    )
    assert "answers as 'letters', and to any other name, until Ctrl-C" in found.said
    for _ in range(2):
        found.openai().chat.completions.create(model="gpt-4o", messages=ASK, max_tokens=2)  # pyright: ignore
    code, out, err = found.end()
    assert (code, out.strip()) == (0, "ended: 2 calls answered")
    assert err.count("'gpt-4o'") == 1 and "Traceback" not in err
    assert list(tmp_path.iterdir()) == [], "nothing was recorded"


def test_what_cannot_be_served_is_one_line(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def refused(*arguments: str) -> str:
        (line,) = invoke("serve", *arguments, code=2).stderr.splitlines()
        return line

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert f"port {port} on 127.0.0.1 is taken by another program" in refused(str(model), "--port", port)
    assert "anybody who reaches this machine could use the model" in refused(
        str(model), "--host", "0.0.0.0", "--key", "none", "--port", "0"
    )
    assert "ASCII without spaces" in refused(str(model), "--key", "two words", "--port", "0")
    assert "there is no latest model: no run in" in refused("latest", "--port", "0")
    assert "no such address" in refused(str(model), "--host", "no.such.host.invalid", "--port", "0")


# --------------------------------------------------------------------------- one function for every door


AGENT = """
import json, urllib.request

def agent(task, llm):
    body = json.dumps({"model": "m", "max_tokens": 2, "messages": [{"role": "user", "content": task["letter"]}]}).encode()
    request = urllib.request.Request(llm.endpoint + "/chat/completions", body, {"Content-Type": "application/json"})
    said = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"] or ""
    return float(said.startswith(task["letter"]))
"""


def test_latest_a_run_and_its_folder_are_the_models_they_left_at_every_door(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "tasks.jsonl").write_text('{"letter": "a"}\n{"letter": "b"}\n')
    quick = (
        "agent.py:agent",
        "--tasks",
        "tasks.jsonl",
        "--isolation",
        "thread",
        "--set",
        "threads=1",
        "--set",
        "algorithm.tasks_per_step=2",
    )
    train = ("train", *quick, "--group-size", "2", "--set", "checkpoint.save_every=1")
    invoke(*train, "--steps", "2", "--model", str(model), "--name", "first")
    (run,) = json.loads(invoke("runs", "--json").stdout)
    last = Path(run["folder"]) / "checkpoints" / "step-000002"

    scored = invoke("eval", *quick, "--model", "latest", "--name", "scored")
    assert f"latest is the last checkpoint of run {run['id']}: {last}" in scored.output
    newest = json.loads(invoke("runs", "--json").stdout)[0]
    assert (newest["name"], newest["model"]) == ("scored", str(last)), (
        "an evaluation leaves no checkpoint, and is not what latest means next"
    )
    for given in ("latest", "first", run["id"], run["folder"], f"{run['folder']}/checkpoints"):
        chat = invoke("chat", "--model", given, "--max-tokens", "2", stdin="a\n/quit\n")
        assert f"{given} is the last checkpoint of run {run['id']}" in chat.stderr
    assert "checkpoint" not in invoke("chat", "--model", str(last), "--max-tokens", "2", stdin="/quit\n").stderr
    assert "has no checkpoint to take as a model" in invoke("chat", "--model", "scored", code=2).stderr

    found = start(tmp_path, "first", "--port", "0")
    assert found.said.startswith(f"first is the last checkpoint of run {run['id']}")
    assert [one.id for one in found.openai().models.list()] == ["step-000002"]
    assert found.end()[0] == 0

    went_on = invoke(*train, "--steps", "2", "--model", "latest", "--name", "second")
    assert "latest is the last checkpoint of run" in went_on.stdout
    second = json.loads(invoke("runs", "--json").stdout)[0]
    assert second["model"] == str(last)
    more = invoke(*train, "--steps", "3", "--model", "latest", "--name", "second", "--resume", second["id"])
    assert "step 3/3" in more.stdout, (
        "a resumed run goes on with the model that it began with, whatever is the latest now"
    )
