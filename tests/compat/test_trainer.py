"""Trainer as programs call it: every keyword they pass works as they mean it, or is refused by name with one sentence."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from agentlightning import GRPO, AgentOpsTracer, LitAgent, OtelTracer, Trainer
from agentlightning.errors import ConfigError
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
