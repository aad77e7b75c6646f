"""Trainer as programs call it: every keyword they pass works as they mean it, or is refused by name with one sentence."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agentlightning import GRPO, AgentOpsTracer, LitAgent, OtelTracer, Trainer, Triplet
from agentlightning.compat.adapters import TracerTraceToTriplet, TraceToMessages, TripletExporter
from agentlightning.credit.settings import CreditSettings
from agentlightning.errors import ConfigError
from agentlightning.store import open_store
from agentlightning.tracing.tracer import Tracer
from tests.compat import program
from tests.tiny import letter_tasks


def trainer(letters: Path, out: Path, **keywords: Any) -> Trainer:
    keywords = {
        "model": letters,
        "output_dir": out / "runs",
        "n_runners": 4,
        "threads": 1,
        "progress": False,
        **keywords,
    }
    return Trainer(sampling={"max_tokens": 1}, **keywords)


# --------------------------------------------------------------------------- tracer, hooks


@pytest.mark.parametrize("isolation", ["thread", "process"])
@pytest.mark.parametrize("how", ["fit", "dev", "evaluate"])
def test_a_trainers_tracer_and_hooks_go_along_with_each_attempt(
    letters: Path, tmp_path: Path, isolation: str, how: str
) -> None:
    notes = tmp_path / "notes"
    own, hook = program.Own(notes), program.Hook(notes)
    run = trainer(
        letters, tmp_path, tracer=own, hooks=[hook], runner={"isolation": isolation},
        algorithm=GRPO(group_size=2, tasks_per_step=2), steps=1,
    )  # fmt: skip
    assert run.tracer is own
    tasks = letter_tasks(2)
    if how == "dev":
        run.dev(program.knows, tasks, n=2)
    else:
        getattr(run, how)(program.knows, tasks)
    lines = notes.read_text().splitlines()
    attempts = {"fit": 4, "dev": 3, "evaluate": 2}[how]
    for word in ("enter", "leave", "on_rollout_start", "on_trace_start", "on_trace_end", "on_rollout_end"):
        assert lines.count(word) == attempts, (word, lines)
    assert lines.count("init") == lines.count("teardown") == (1 if isolation == "thread" else attempts)
    assert sum(line.startswith("agent Own") for line in lines) == attempts


def test_an_agents_trainer_is_the_programs_own_where_both_are_in_one_process(letters: Path, tmp_path: Path) -> None:
    agent = program.Knows(tmp_path / "notes")
    run = trainer(letters, tmp_path)
    run.dev(agent, letter_tasks(1), n=1)
    assert agent.trainer is run and agent.get_trainer() is run and agent.tracer is run.tracer
    assert type(run.tracer) is Tracer and agent.runner.worker_id == 0
    assert "agent Tracer" in (tmp_path / "notes").read_text()


def test_one_hook_needs_no_list(letters: Path, tmp_path: Path) -> None:
    hook = program.Hook(tmp_path / "notes")
    trainer(letters, tmp_path, hooks=hook).dev(program.plain, letter_tasks(1), n=1)
    assert (tmp_path / "notes").read_text().count("on_rollout_end") == 2


def test_what_a_program_hangs_in_may_fail_and_its_run_ends_well(letters: Path, tmp_path: Path) -> None:
    said: Any = program.Listener()
    run = trainer(
        letters, tmp_path, hooks=[program.BadHook()], progress=said, steps=1,
        algorithm=GRPO(group_size=2, tasks_per_step=2),
    )  # fmt: skip
    assert run.fit(program.plain, letter_tasks(2)).ledger.check().rollouts == {"succeeded": 4}
    (line,) = [line for line in said.messages if "hook" in line]
    assert re.fullmatch(
        r"the hook BadHook failed in on_trace_end: KeyError: 'mine' \(program\.py:\d+\); the attempt goes on", line
    )


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_what_goes_wrong_beside_an_attempt_is_seen_where_the_run_is_seen(
    letters: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], isolation: str
) -> None:
    """And not in an attempt's log, nor nowhere, as at a tracer's end, which comes after the run's."""
    trainer(
        letters, tmp_path, hooks=[program.BadHook()], tracer=program.BadEnd(), progress=True, steps=1,
        algorithm=GRPO(group_size=2, tasks_per_step=2), runner={"isolation": isolation},
    ).fit(program.plain, letter_tasks(2))  # fmt: skip
    shown = capsys.readouterr().out
    assert shown.count("the hook BadHook failed in on_trace_end") == 1
    assert shown.count("the tracer BadEnd failed in teardown: RuntimeError: left open") == 1, shown


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({"tracer": program.Own}, r"Trainer\(tracer=Own\): expected a Tracer: it is a class: pass an instance, tracer=Own\(\)"),
        ({"tracer": "agentops"}, r"Trainer\(tracer='agentops'\): expected a Tracer: tracer=AgentOpsTracer\(\)"),
        ({"tracer": 3}, r"Trainer\(tracer=3\): expected a Tracer: tracer=AgentOpsTracer\(\)"),
        ({"hooks": [program.Hook]}, r"Trainer\(hooks=.*\): expected .*: it is a class: pass an instance, hooks=\[Hook\(\)\]"),
        ({"hooks": [print]}, r"Trainer\(hooks=.*\): expected objects with any of on_rollout_start, .*: hooks=\[MyHook\(\)\]"),
        ({"hooks": "mine"}, r"Trainer\(hooks='mine'\): expected objects with any of"),
    ],
)  # fmt: skip
def test_what_is_no_tracer_and_no_hook_is_refused_in_one_line(keywords: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=f"^{says}") as refused:
        Trainer(model="m", **keywords)
    assert "\n" not in str(refused.value)


def test_companions_that_processes_cannot_have_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    class Local:
        def on_rollout_start(self) -> None: ...

    run = trainer(Path("no-model"), tmp_path, hooks=[Local()], runner={"isolation": "process"})
    with pytest.raises(ConfigError, match=r"the hook Local cannot be made again in the agents' processes"):
        run.dev(program.plain, letter_tasks(1))


# --------------------------------------------------------------------------- what was called


@pytest.mark.parametrize("isolation", ["thread", "process"])
@pytest.mark.parametrize("agent", ["traced", "traced_async"])
def test_get_last_trace_has_every_call_with_its_agent_tokens_and_rewards(
    letters: Path, tmp_path: Path, isolation: str, agent: str
) -> None:
    """In the agent's process of the attempt that runs, and in the program of the one that ended last."""
    notes = tmp_path / "notes"
    run = trainer(letters, tmp_path, hooks=[program.Spans(notes)], runner={"isolation": isolation})
    report = run.dev(getattr(program, agent), letter_tasks(1), n=1)
    assert [line.outcome for line in report.attempts] == ["succeeded"] * 2, report
    assert notes.read_text().splitlines() == ["agentlightning.reward first second"] * 2
    spans = run.tracer.get_last_trace()
    calls = [span for span in spans if span.name == "openai.chat.completion"]
    assert [span.attributes["agent.name"] for span in calls] == ["first", "second"]
    assert all(span.attributes["prompt_token_ids"] and span.attributes["response_token_ids"] for span in calls)
    emitted, final = [span for span in spans if span.name == "agentlightning.reward"]
    assert (emitted.attributes["reward"], emitted.parent_id) == (0.25, calls[0].span_id)
    assert (final.attributes["reward"], final.parent_id) == (1.0, None)
    assert {(span.rollout_id, span.attempt_id) for span in spans} == {
        (run.last_trace().rollout_id, spans[0].attempt_id)
    }
    assert [span.sequence_id for span in spans] == [1, 2, 3, 4]
    assert AgentOpsTracer().get_last_trace() == spans


def test_the_trace_is_drawn_by_the_tracer_that_a_program_has(letters: Path, tmp_path: Path) -> None:
    run = trainer(letters, tmp_path, tracer=OtelTracer())
    run.dev(program.traced, letter_tasks(1), n=1)
    svg, png = run.tracer.last_trace().visualize(tmp_path / "tree_graph")
    assert "<svg" in svg.read_text() and png.read_bytes().startswith(b"\x89PNG")


# --------------------------------------------------------------------------- tasks, epochs, where it goes


def plain(letters: Path, out: Path, **keywords: Any) -> Any:
    return trainer(letters, out, algorithm=GRPO(group_size=2, tasks_per_step=2), **keywords)


@pytest.mark.parametrize("name", ["max_tasks", "max_rollouts"])
@pytest.mark.parametrize("workers", ["n_workers", "n_runners"])
def test_the_number_of_tasks_and_of_attempts_at_once_have_two_spellings(
    letters: Path, tmp_path: Path, name: str, workers: str
) -> None:
    run = plain(letters, tmp_path, **{name: 2, "n_runners": None, workers: 3})
    result = run.fit(program.plain, letter_tasks(8))
    assert result.ledger.rollouts == {"succeeded": 4} and run.config.runner.n_runners == 3


def test_data_sets_and_epochs_of_the_constructor_serve_fit_and_train(letters: Path, tmp_path: Path) -> None:
    run = plain(
        letters, tmp_path, train_dataset=letter_tasks(2), val_dataset=letter_tasks(1), num_epochs=2, port=0,
        triplet_exporter=None, daemon=False,
    )  # fmt: skip
    result = asyncio.run(run.train(program.plain))
    assert len(result.history) == 2 and [each.rollouts for each in result.validations] == [1, 1]
    assert result.folder.parent == tmp_path / "runs"


def test_val_data_is_val_dataset(letters: Path, tmp_path: Path) -> None:
    run = plain(letters, tmp_path, steps=1)
    assert len(run.fit(program.plain, letter_tasks(2), val_data=letter_tasks(1)).validations) == 2
    with pytest.raises(ConfigError, match=r"^val_dataset and val_data are the same setting: pass one of them$"):
        run.fit(program.plain, letter_tasks(2), letter_tasks(1), val_data=letter_tasks(1))


def test_an_agent_may_be_any_form_of_the_surface(letters: Path, tmp_path: Path) -> None:
    assert isinstance(program.decorated, LitAgent)
    for agent in (program.plain, program.decorated, program.Knows(tmp_path / "notes")):
        report = trainer(letters, tmp_path).dev(agent, letter_tasks(1), n=1)
        assert [line.outcome for line in report.attempts] == ["succeeded"] * 2


# --------------------------------------------------------------------------- adapter


@pytest.mark.parametrize("name", ["adapter", "triplet_exporter"])
@pytest.mark.parametrize(
    "adapter",
    [
        {"agent_match": "write"},
        program.Named("write"),
        TracerTraceToTriplet(agent_match="write"),
        TripletExporter(agent_match="write"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_an_adapters_agent_match_chooses_the_agents_that_are_trained(name: str, adapter: Any) -> None:
    run = Trainer(model="m", **{name: adapter})
    assert run.adapter.agent_match == run.config.trained_agents == "write"
    assert isinstance(adapter, dict) or run.adapter is adapter


@pytest.mark.parametrize(
    "adapter", [None, {}, {"agent_match": None}, TracerTraceToTriplet(), program.Halves(), TraceToMessages()]
)
def test_an_adapter_that_matches_nobody_trains_all(adapter: Any) -> None:
    run = Trainer(model="m", adapter=adapter)
    assert run.config.trained_agents is None and getattr(run.adapter, "agent_match", None) is None


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_only_calls_of_the_agents_that_an_adapter_matches_are_trained(
    letters: Path, tmp_path: Path, isolation: str
) -> None:
    notes = tmp_path / "notes"
    run = plain(letters, tmp_path, adapter={"agent_match": "write"}, steps=1, runner={"isolation": isolation})
    tasks = [{**task, "notes": str(notes)} for task in letter_tasks(2)]
    ledger = run.fit(program.writes, tasks).ledger.check()
    assert ledger.masked["other_agent"] > 0 and ledger.trained > 0
    assert set(notes.read_text().split()) == {"write"}, "what the agent reads of its Trainer"


@pytest.mark.parametrize("how", ["adapt", "export", "call"])
def test_a_programs_own_adapter_gives_recorded_calls_their_rewards(letters: Path, tmp_path: Path, how: str) -> None:
    adapter: Any = {"adapt": program.Halves(), "export": program.Exports(), "call": program.halves}[how]
    run = trainer(
        letters, tmp_path, adapter=adapter, steps=1, val_dataset=letter_tasks(1),
        algorithm=GRPO(group_size=2, tasks_per_step=2, credit=CreditSettings(scheme="call")),
    )  # fmt: skip
    result = run.fit(program.writes_and_checks, letter_tasks(2))
    ledger = result.ledger.check()
    assert ledger.rollouts == {"succeeded": 4} and not ledger.calls.get("given"), ledger
    spans = [span for span in run.tracer.get_last_trace() if "reward" in span.attributes]
    assert all(validation.scored == 1 for validation in result.validations), "and nothing of a validation's"
    assert len(spans) == 1
    store = open_store(run.config.record_url)

    async def rewards() -> list[Any]:
        rollouts = [each for each in await store.rollouts(result.run_id) if each.mode == "train"]
        return [reward for each in rollouts for reward in await store.rewards(each.id)]

    given = [reward for reward in asyncio.run(rewards()) if reward.call_id is not None]
    asyncio.run(store.close())
    assert sorted({reward.value for reward in given}) == [0.0, 0.5] and len(given) == 8


@pytest.mark.parametrize(
    ("adapter", "reason", "says"),
    [
        (program.BadAdapter(KeyError("mine")), "agent_error", r"the adapter BadAdapter failed in adapt: KeyError: 'mine' \(program\.py:\d+\)"),
        (program.BadAdapter(SystemExit(3)), "agent_error", r"the adapter BadAdapter failed in adapt: SystemExit: 3 \(program\.py:\d+\)"),
        (program.Makes(None), "agent_error", r"the adapter Makes failed in adapt: TypeError: it returned NoneType, not a list of Triplet"),
        (program.Makes([]), "empty", r"the adapter Makes made no triplet of 2 calls"),
        (program.Makes([3]), "empty", r"none of the 1 triplets that the adapter Makes made has tokens: triplet 1 is int, .*"),
        (program.Makes([Triplet(prompt=[1], response=[10**6])]), "agent_error", r"triplet 1 of 1 that the adapter Makes made has token id 1000000, .*"),
    ],
    ids=lambda each: "",
)  # fmt: skip
def test_an_adapter_that_fails_is_its_attempts_failure_in_one_line_and_not_the_end_of_a_run(
    letters: Path, tmp_path: Path, adapter: Any, reason: str, says: str
) -> None:
    run = trainer(letters, tmp_path, adapter=adapter)
    report = run.dev(program.writes_and_checks, letter_tasks(2), n=2)
    assert {line.outcome for line in report.attempts} == {f"failed: {reason}"}, report
    assert re.search(says, str(report)), report


def test_an_adapter_that_makes_no_triplets_is_refused_where_weights_are_trained(letters: Path, tmp_path: Path) -> None:
    run = trainer(letters, tmp_path, adapter=TraceToMessages())
    run.dev(program.plain, letter_tasks(1), n=1)
    with pytest.raises(
        ConfigError, match=r"^adapter=TraceToMessages\(\): it makes no triplets, and grpo trains weights"
    ):
        run.fit(program.plain, letter_tasks(2))


def test_an_adapter_of_ones_own_may_derive_from_ours_and_choose_agents_too(letters: Path, tmp_path: Path) -> None:
    class Mine(TracerTraceToTriplet):
        def adapt(self, source: Any, /) -> list[Triplet]:
            made = super().adapt(source)
            return [each.model_copy(update={"reward": 0.5}) for each in made]

    run = trainer(
        letters, tmp_path, adapter=Mine(agent_match="rewrite"), steps=1,
        algorithm=GRPO(group_size=2, tasks_per_step=2, credit=CreditSettings(scheme="call")),
    )  # fmt: skip
    assert run.fit(program.writes_and_checks, letter_tasks(2)).ledger.check().masked["other_agent"] > 0
    rewards = [span for span in run.tracer.get_last_trace() if span.attributes.get("agentlightning.reward.call_id")]
    assert [span.attributes["reward"] for span in rewards] == [0.5], "one call is of an agent that was chosen"


def test_an_adapter_has_the_attempts_deadline(letters: Path, tmp_path: Path) -> None:
    run = trainer(letters, tmp_path, adapter=program.Hangs(), runner={"deadline": 3.0})
    report = run.dev(program.writes_and_checks, letter_tasks(1), n=1)
    assert report.attempts[0].outcome == "failed: timeout" and "the adapter did not return within 3 s" in str(report)


def test_triplets_that_the_agent_returned_itself_are_not_made_again(letters: Path, tmp_path: Path) -> None:
    run = trainer(letters, tmp_path, adapter=program.BadAdapter(KeyError("mine")))
    report = run.dev(program.returns_triplets, letter_tasks(1), n=1)
    assert report.attempts[0].outcome == "succeeded", report


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({"adapter": {"agent_mtch": "x"}}, r"Trainer\(adapter=.*\): 'agent_mtch' is no setting of an adapter here"),
        ({"adapter": {"agent_match": "("}}, r"Trainer\(adapter=.*\): agent_match='\(' is no regular expression"),
        ({"adapter": {"agent_match": 3}}, r"Trainer\(adapter=.*\): agent_match=3 is no text"),
        ({"adapter": "write"}, r"Trainer\(adapter='write'\): expected \{'agent_match': \.\.\.\}, or an object"),
        ({"adapter": object()}, r"Trainer\(adapter=<an object>\): expected \{'agent_match'"),
        ({"adapter": program.Named}, r"Trainer\(adapter=Named\): expected .*: it is a class: pass an instance"),
        ({"triplet_exporter": 3}, r"Trainer\(triplet_exporter=3\): expected an adapter under its older name"),
        ({"adapter": {"agent_match": "a"}, "triplet_exporter": {}}, r"adapter and triplet_exporter are the same setting"),
        ({"adapter": {"agent_match": "a"}, "trained_agents": "b"}, r"adapter's agent_match and trained_agents are the same setting"),
    ],
)  # fmt: skip
def test_what_is_no_adapter_is_refused_in_one_line(keywords: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=f"^{says}") as refused:
        Trainer(model="m", **keywords)
    assert "\n" not in str(refused.value)


# --------------------------------------------------------------------------- how processes are laid out


@pytest.mark.parametrize("strategy", ["sm", "shm", {"type": "sm"}, {"type": "shm"}])
def test_one_process_is_threads_also_for_an_agent_that_is_named_by_its_path(
    letters: Path, tmp_path: Path, strategy: Any
) -> None:
    run = trainer(letters, tmp_path, strategy=strategy)
    assert run.config.runner.isolation == "thread"
    run.dev(f"{program.__name__}:plain", letter_tasks(1), n=1)


@pytest.mark.parametrize("strategy", ["cs", {"type": "cs"}])
def test_client_and_server_are_processes_where_an_agent_can_have_one_and_a_line_where_not(
    letters: Path, tmp_path: Path, strategy: Any
) -> None:
    said: Any = program.Listener()
    run = plain(letters, tmp_path, strategy=strategy, progress=said, steps=1)
    run.fit(program.plain, letter_tasks(2))
    assert [line for line in said.messages if line.startswith("strategy='cs': plain is an object of this program")]
    said.messages.clear()
    run.fit(f"{program.__name__}:plain", letter_tasks(2))
    assert not [line for line in said.messages if "strategy" in line]


@pytest.mark.parametrize("daemon", [True, False])
def test_daemon_is_what_is_done_either_way(letters: Path, tmp_path: Path, daemon: bool) -> None:
    """A run has ended its agents' processes when it returns, and they end with the program."""
    run = plain(letters, tmp_path, daemon=daemon, steps=1, runner={"isolation": "process"})
    run.fit(program.plain, letter_tasks(2))
    done = subprocess.run(["ps", "-o", "pid=", "--ppid", str(os.getpid())], capture_output=True, text=True, check=False)
    assert len(done.stdout.split()) <= 1, "nothing is left but ps"


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({"strategy": "ray"}, r"Trainer\(strategy='ray'\): expected 'sm' \(one process\) or 'cs' \(agents apart from the run\)"),
        ({"strategy": 3}, r"Trainer\(strategy=3\): expected 'sm'"),
        ({"strategy": {"type": "cs", "server_port": 1}}, r"Trainer\(strategy=.*\): expected .*: server_port has no part behind it"),
        ({"daemon": "yes"}, r"Trainer\(daemon='yes'\): expected True or False: daemon=True"),
        ({"strategy": "sm", "runner": {"isolation": "process"}}, r"strategy='sm' and runner\.isolation='process' say the opposite"),
        ({"port": 70000}, r"Trainer\(port=70000\): expected a whole number from 0 \(a free one\) to 65535"),
        ({"num_epochs": 0}, r"Trainer\(num_epochs=0\): expected a whole number, at least 1"),
        ({"max_tasks": 1, "max_rollouts": 2}, r"max_tasks and max_rollouts are the same setting: pass one of them"),
        ({"n_workers": 1, "n_runners": 2}, r"n_runners and n_workers are the same setting: pass one of them"),
        ({"output_dir": 3}, r"Trainer\(output_dir=3\): expected text or a Path"),
        ({"train_dataset": 3}, r"train_dataset "),
    ],
)  # fmt: skip
def test_a_keyword_that_cannot_be_is_refused_in_one_line(keywords: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=f"^{says}") as refused:
        Trainer(model="m", **keywords)
    assert "\n" not in str(refused.value)


def test_a_port_is_where_the_endpoint_is(letters: Path, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run = trainer(letters, tmp_path, port=port)
    run.dev(program.tells_its_port, letter_tasks(1), n=1)
    assert f":{port}/a/" in program.ports[-1]


def test_a_running_server_is_not_joined_yet_and_says_so(letters: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^fit\(agent, 'http://127.*'\): agents, model and record are in one command"
    ):
        trainer(letters, tmp_path).fit(program.plain, "http://127.0.0.1:9999")
