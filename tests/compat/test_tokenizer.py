"""`@rollout(tokenizer=...)`: agents take the tokenizer of the run's model, in threads and in processes, which is token by
token what transformers makes of the same folder, and loads no torch where they run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from transformers import AutoTokenizer

from agentlightning import GRPO, LLM, NamedResources, Trainer, rollout
from agentlightning.errors import ConfigError
from agentlightning.runners.tokenizer import load_tokenizer
from tests.compat import tokenizing_agents
from tests.compat.tokenizing_agents import ask
from tests.tiny import letter_tasks, save_tiny
from tests.upstream import KEY, OtherEndpoint

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "héllo <|im_end|> you"}]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_an_agent_is_handed_the_tokenizer_of_the_runs_model(letters: Path, tmp_path: Path, isolation: Any) -> None:
    outputs: list[Any] = []

    def grade(task: Any, output: Any) -> float:
        outputs.append((task, output))
        return 1.0

    trainer = Trainer(
        model=letters, output_dir=tmp_path, progress=False, threads=1, grader=grade, sampling={"max_tokens": 1},
        runner={"isolation": isolation},
    )  # fmt: skip
    counts, named = (
        (f"{tokenizing_agents.__file__}:{name}" if isolation == "process" else getattr(tokenizing_agents, name))
        for name in ("counts", "named")
    )
    attempts = trainer.dev(counts, letter_tasks(2), n=1).attempts
    assert {attempt.outcome for attempt in attempts} == {"succeeded"}
    theirs: Any = cast(Any, AutoTokenizer).from_pretrained(letters)
    for task, output in outputs:
        asked = [{"role": "user", "content": task["letter"]}]
        text = theirs.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
        assert output["ids"] == theirs(text, add_special_tokens=False)["input_ids"] and output["text"] == text
        assert output["end"] == theirs.eos_token_id
        assert isolation == "thread" or not (output["torch"] or output["transformers"])
    assert outputs and trainer.dev(named, letter_tasks(1), n=1).attempts[0].reward == 1.0


def test_it_is_what_transformers_makes_of_the_same_folder(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "tiny")
    ours = load_tokenizer(str(folder))
    other: Any = cast(Any, AutoTokenizer).from_pretrained(folder)
    for tools, generate in ((None, True), (TOOLS, False)):
        text = other.apply_chat_template(MESSAGES, tools=tools, tokenize=False, add_generation_prompt=generate)
        assert ours.apply_chat_template(MESSAGES, tools=tools, tokenize=False, add_generation_prompt=generate) == text
        ids = other(text, add_special_tokens=False)["input_ids"]
        assert ours.apply_chat_template(MESSAGES, tools=tools, add_generation_prompt=generate) == ids
        assert ours.decode(ids) == other.decode(ids)
        assert ours.decode(ids, skip_special_tokens=True) == other.decode(ids, skip_special_tokens=True)
    assert (len(ours), ours.eos_token, ours.eos_token_id, ours.pad_token_id, ours.bos_token_id) == (
        len(other), other.eos_token, other.eos_token_id, other.pad_token_id, None,
    )  # fmt: skip
    assert ours("hi")["input_ids"] == other("hi")["input_ids"] and ours.tokenize("hi") == other.tokenize("hi")
    assert ours.convert_ids_to_tokens(ours.convert_tokens_to_ids(["<|im_end|>"])) == ["<|im_end|>"]
    with pytest.raises(AttributeError, match="the tokenizer that an agent is handed has no save_pretrained: it has"):
        ours.save_pretrained("x")


def test_without_a_model_it_is_the_one_that_is_named_and_else_a_line_says_so(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "tiny")
    other = OtherEndpoint()
    trainer = Trainer(
        resources={"main_llm": LLM(endpoint=other.url, model="m", api_key=KEY)}, output_dir=tmp_path, progress=False
    )

    @rollout(tokenizer=LLM(name=str(folder), tokenizer_only=True))
    def named(task: Any, tokenizer: Any) -> float:
        return float(len(tokenizer.encode(task)))

    def unnamed(task: Any, tokenizer: Any) -> float:
        return 0.0

    assert trainer.dev(named, ["abcd"], n=1).attempts[0].reward == 4.0
    said = " ".join(finding.cause + finding.detail for finding in trainer.dev(unnamed, ["abcd"], n=1).findings)
    assert "this run has no model whose it would be: name one, @rollout(tokenizer=LLM(" in said
    assert trainer.dev(tokenizing_agents.named, letter_tasks(1), n=1).attempts[0].reward == 1.0, (
        "one with a default does without"
    )
    other.close()
    with pytest.raises(ConfigError, match="a tokenizer is passed as tokenizer="):
        rollout(model=LLM(name="x", tokenizer_only=True))


def test_llm_name_is_another_spelling_of_a_model_and_means_the_runs_policy(letters: Path, tmp_path: Path) -> None:
    trainer = Trainer(
        algorithm=GRPO(group_size=4, tasks_per_step=1), model=letters, output_dir=tmp_path, steps=1, threads=1,
        learner={"lr": 5e-3}, sampling={"max_tokens": 1}, progress=False, n_runners=4,
        resources={"main_llm": LLM(name="openai/some-model")},
    )  # fmt: skip

    def agent(task: Any, resources: NamedResources) -> float:
        llm = resources["main_llm"]
        return 1.0 if ask(llm, task["letter"]) == task["letter"] else 0.0

    assert trainer.fit(agent, letter_tasks(2)).ledger.check().sampled == 4
