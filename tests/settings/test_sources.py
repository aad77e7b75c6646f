"""Settings: where each value comes from, and what is refused in which words."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlightning.algorithms import ALGORITHMS, GRPO
from agentlightning.errors import ConfigError
from agentlightning.settings.fields import LearnerConfig, ModelConfig, RunConfig
from agentlightning.settings.reference import reference
from agentlightning.settings.sources import ENVIRONMENT_PREFIX, allowed, describe_run, git_revision, resolve

ROOT = Path(__file__).parents[2]


def write(folder: Path, text: str) -> Path:
    file = folder / "runs.toml"
    file.write_text(text)
    return file


def problems(**sources: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        resolve(ALGORITHMS, **sources)  # pyright: ignore[reportArgumentType]
    return str(caught.value).splitlines()


def test_defaults_alone_resolve_and_say_so() -> None:
    resolved = resolve(ALGORITHMS)
    assert resolved.config == RunConfig()
    assert resolved.algorithm == GRPO()
    assert set(resolved.sources.values()) == {"default"}
    assert {"steps", "learner.lr", "algorithm.name", "algorithm.group_size"} <= set(resolved.sources)


def test_later_sources_win_and_each_value_keeps_its_source(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        'name = "a"\nsteps = 3\n[learner]\nlr = 1e-3\nwarmup_steps = 5\n[algorithm]\nname = "grpo"\ngroup_size = 4\n',
    )
    resolved = resolve(
        ALGORITHMS,
        file,
        {"steps": "7", "algorithm.group_size": "6"},
        {"AGL_LEARNER__LR": "1e-4", "PATH": "/bin"},
        RunConfig(seed=9, steps=1, model=ModelConfig(path="m")),
        arguments={"runner": {"n_runners": 3}, "engine.slots": 5},
        flag_names={"steps": "--steps"},
    )
    config, sources = resolved.config, resolved.sources
    assert (config.name, config.steps, config.seed, config.model.path) == ("a", 7, 9, "m")
    assert (config.learner.lr, config.learner.warmup_steps) == (1e-4, 5)
    assert (config.runner.n_runners, config.engine.slots) == (3, 5)
    assert isinstance(resolved.algorithm, GRPO) and resolved.algorithm.group_size == 6
    assert sources["name"] == "file runs.toml line 1"
    assert sources["steps"] == "flag --steps"
    assert (
        sources["seed"] == sources["model.path"] == sources["runner.n_runners"] == sources["engine.slots"] == "argument"
    )
    assert sources["learner.lr"] == "environment AGL_LEARNER__LR"
    assert sources["learner.warmup_steps"] == "file runs.toml line 5"
    assert sources["algorithm.group_size"] == "flag --set"
    assert sources["algorithm.name"] == "file runs.toml line 7"
    assert sources["learner.eps"] == "default"


def test_settings_resolved_once_keep_their_sources_when_resolved_again() -> None:
    first = resolve(ALGORITHMS, flags={"steps": "7", "algorithm.std": "none"}, env={"AGL_SEED": "4"})
    second = resolve(ALGORITHMS, defaults=first, arguments={"name": "b"})
    assert second.config == first.config.model_copy(update={"name": "b"})
    assert second.algorithm == first.algorithm
    assert second.sources == {**first.sources, "name": "argument"}


def test_an_algorithm_a_program_passes_is_kept_and_a_file_may_not_name_another(tmp_path: Path) -> None:
    resolved = resolve(
        ALGORITHMS, write(tmp_path, "[algorithm]\nstd = 'none'\ngroup_size = 2\n"), algorithm=GRPO(group_size=5)
    )
    assert resolved.algorithm == GRPO(group_size=5, std="none")
    assert resolved.sources["algorithm.group_size"] == resolved.sources["algorithm.name"] == "argument"

    class Other(GRPO):
        name = "other"

    (line,) = problems(file=write(tmp_path, "[algorithm]\nname = 'grpo'\n"), algorithm=Other())
    assert line == "algorithm.name = 'grpo' (file runs.toml line 2): the program passes 'other'; leave one of them out"


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("learner.lr", "1e-5", 1e-5),
        ("learner.lr", "1", 1.0),
        ("name", "123", "123"),
        ("name", "true", "true"),
        ("name", "it's", "it's"),
        ("name", '"quoted"', "quoted"),
        ("steps", "none", None),
        ("steps", "12", 12),
        ("deterministic", "1", True),
        ("deterministic", "off", False),
        ("deterministic", "true", True),
        ("output_dir", "a/b c", Path("a/b c")),
        ("learner.betas", "[0.8, 0.9]", (0.8, 0.9)),
        ("runner.failure_reward", "{timeout = -1}", {"timeout": -1.0}),
        ("runner.failure_reward.agent_error", "-0.5", {"agent_error": -0.5}),
        ("learner.layout", "tree", "tree"),
        ("model.path", "1\nsteps = 3", "1\nsteps = 3"),
    ],
)
def test_a_text_from_a_flag_or_the_environment_means_what_its_setting_can_hold(
    key: str, text: str, value: object
) -> None:
    for resolved in (
        resolve(ALGORITHMS, flags={key: text}),
        resolve(ALGORITHMS, env={ENVIRONMENT_PREFIX + key.upper().replace(".", "__"): text}),
    ):
        at: object = resolved.config
        for part in key.split(".")[:2]:
            at = getattr(at, part)
        assert at == value


def test_a_key_of_a_table_joins_what_a_lower_source_gave_and_a_whole_table_replaces_it(tmp_path: Path) -> None:
    file = write(tmp_path, "[runner.failure_reward]\ntimeout = -1.0\n")
    joined = resolve(ALGORITHMS, file, {"runner.failure_reward.empty": "-2"})
    assert joined.config.runner.failure_reward == {"timeout": -1.0, "empty": -2.0}
    assert joined.sources["runner.failure_reward"] == "file runs.toml line 2, flag --set"
    replaced = resolve(ALGORITHMS, file, {"runner.failure_reward": "{empty = -2}"})
    assert replaced.config.runner.failure_reward == {"empty": -2.0}


# --------------------------------------------------------------------------- refusals


def test_unknown_keys_are_named_with_their_place_and_the_nearest_known_ones(tmp_path: Path) -> None:
    lines = problems(
        file=write(tmp_path, "lr = 1\n[learner]\nlrr = 1\n[algorithm]\ngroup_sizes = 3\n[learnr]\nlr = 2\n"),
        env={"AGL_LEARNER__EPZ": "1"},
    )
    assert lines == [
        "lr (file runs.toml line 1): no such setting; nearest: learner.lr",
        "learner.lrr (file runs.toml line 3): no such setting; nearest: learner.lr",
        "algorithm.group_sizes (file runs.toml line 5): no such setting; nearest: algorithm.group_size",
        "learnr.lr (file runs.toml line 7): no such setting; nearest: learner.lr",
        "learner.epz (environment AGL_LEARNER__EPZ): no such setting; nearest: AGL_LEARNER__EPS",
    ]


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("n_runner", "4", "no such setting; nearest: runner.n_runners"),
        ("runners", "4", "no such setting; nearest: runner.n_runners"),
        ("runner.n_runner", "4", "no such setting; nearest: runner.n_runners"),
        ("runner.isolaton", "thread", "no such setting; nearest: runner.isolation"),
        ("learner.steps", "4", "no such setting; nearest: steps"),
        ("sampling.n", "4", "no such setting; known in sampling: max_tokens, "),
        ("engine.name", "vllm", "sampling is by the engine inside the process"),
        ("backend", "vllm", "sampling is by the engine inside the process"),
        ("nmae", "judge", "no such setting; nearest: name"),
        ("runner.lora_rank", "8", "there are no adapters in this version"),
    ],
)
def test_a_misspelt_setting_is_told_the_one_that_was_meant_and_nothing_of_its_section(
    key: str, value: str, says: str
) -> None:
    (line,) = problems(flags={key: value})
    assert line.startswith(f"{key} (flag --set): {says}")


@pytest.mark.parametrize(
    ("name", "text"), [("run.yaml", "learner:\n  lr: 1\n"), ("run.json", '{"learner": {"lr": 1}}')]
)
def test_settings_in_another_format_are_told_which_one_is_read(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    (line,) = problems(file=tmp_path / name)
    assert f"settings are TOML, not {name[4:].upper()}" in line


def test_a_table_of_rules_is_checked_inside_each_of_its_entries() -> None:
    assert problems(flags={"gateway.agents.x.sistem": "a"}) == [
        "gateway.agents.x.sistem (flag --set): no such setting; nearest: system; known: system, tools"
    ]
    assert problems(flags={"gateway.agents.x.tools": "search"}) == [
        'gateway.agents.x.tools = "search" (flag --set): allowed is a list of text, or none'
    ]
    assert "would name every call" in problems(flags={"gateway.agents": "{x = {}}"})[0]


def test_a_key_near_to_nothing_gets_the_list_of_known_ones() -> None:
    (line,) = problems(env={"AGL_QQQQ": "1"})
    assert line.startswith("qqqq (environment AGL_QQQQ): no such setting; known here: algorithm, checkpoint, ")


def test_bad_values_say_the_value_its_source_and_what_is_allowed(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "steps = 0\nseed = true\nmodel = 'x'\n[learner]\nlr = 'fast'\nlayout = 'treee'\nbetas = [1.0]\n"
        "[runner]\nn_runners = 1.5\nfailure_reward = {agent_eror = -1.0}\n[algorithm]\ngroup_size = true\n",
    )
    assert sorted(problems(file=file, flags={"sampling.top_p": "2", "name.x": "1", "engine": "3"})) == [
        "algorithm.group_size = true (file runs.toml line 12): allowed is a whole number >= 1, e.g. group_size = 8",
        "engine (flag --set): is a table of settings, not a value; its keys: slots, kv_budget_gb, context_length, "
        "prefix_cache",
        "learner.betas = [1.0] (file runs.toml line 7): allowed is a list of 2: a number, a number, e.g. betas = [0.9, "
        "0.999]",
        'learner.layout = "treee" (file runs.toml line 6): allowed is one of auto, tree, flat, e.g. layout = "auto"',
        'learner.lr = "fast" (file runs.toml line 5): allowed is a number > 0, e.g. lr = 2e-05',
        "model (file runs.toml line 3): is a table of settings, not a value; its keys: path, dtype, device, "
        "tool_format, keep_reasoning, reasoning_tags",
        "name.x (flag --set): name is text, not a table",
        "runner.failure_reward.agent_eror = -1.0 (file runs.toml line 10): allowed is a table: one of agent_error, "
        "timeout, empty, "
        "bad_reward, context_length = a number >= -1e+09 and <= 1e+09",
        "runner.n_runners = 1.5 (file runs.toml line 9): allowed is a whole number >= 1, e.g. n_runners = 8",
        "sampling.top_p = 2 (flag --set): allowed is a number > 0 and <= 1, e.g. --set sampling.top_p=1.0",
        "seed = true (file runs.toml line 2): allowed is a whole number, e.g. seed = 0",
        "steps = 0 (file runs.toml line 1): allowed is a whole number >= 1, or none, e.g. steps = 10",
    ]


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_numbers_that_are_not_finite_are_refused(value: str) -> None:
    assert len(problems(flags={"learner.lr": value})) == 1


@pytest.mark.parametrize("value", ["1e308", "-2e9", "nan"])
def test_a_failures_reward_is_one_that_would_be_taken(value: str) -> None:
    (line,) = problems(flags={"runner.failure_reward": f"{{timeout = {value}}}"})
    assert line.startswith("runner.failure_reward.timeout = ")


def test_a_run_name_may_not_lead_out_of_the_output_folder() -> None:
    assert problems(flags={"name": "../x"})[0].startswith("name (flag --set): ")


def test_an_unknown_algorithm_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    (line,) = problems(file=write(tmp_path, "[algorithm]\nname = 'gpro'\n"))
    assert line == "algorithm.name (file runs.toml line 2): algorithm 'gpro' is not known; known: grpo"
    (line,) = problems(file=write(tmp_path, "algorithm = 'grpo'\n"))
    assert line.startswith("algorithm (file runs.toml line 1): is a table; ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("steps = \n", "not valid TOML"),
        (None, "cannot be read: No such file or directory"),
        ("\udcff", "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, text: str | None, words: str) -> None:
    file = tmp_path / "runs.toml"
    if text is not None:
        file.write_bytes(text.encode("utf-8", "surrogateescape"))
    (line,) = problems(file=file)
    assert line.startswith(str(file)) and words in line


@given(st.sampled_from(sorted(resolve(ALGORITHMS).values())), st.text(max_size=20))
def test_any_text_for_any_setting_is_taken_or_refused_in_words(key: str, text: str) -> None:
    try:
        resolved = resolve(ALGORITHMS, flags={key: text})
    except ConfigError as error:
        assert str(error).startswith(key)
    else:
        assert resolved.sources[key] == "flag --set"


@given(
    st.dictionaries(
        st.text(st.characters(codec="ascii", categories=["L", "N"]) | st.just("_"), min_size=1, max_size=12),
        st.integers(),
    )
)
def test_no_unknown_key_is_ever_ignored(values: dict[str, int]) -> None:
    known = {key.split(".")[0] for key in resolve(ALGORITHMS).values()}
    unknown = [key for key in values if key not in known]
    if unknown:
        lines = problems(arguments={key: values[key] for key in unknown})
        assert [line.split(" ")[0] for line in lines] == unknown


# --------------------------------------------------------------------------- what is written about settings


def test_every_setting_is_documented_under_its_field() -> None:
    missing = re.findall(r"^\| `([\w.]+)` \|.*\|\s+\|$", reference(ALGORITHMS), re.M)
    assert missing == []


def test_the_settings_page_is_in_step_with_the_code() -> None:
    page = ROOT / "docs" / "config.md"
    assert page.read_text() == reference(ALGORITHMS), "run: agl config --reference > docs/config.md"


def test_what_is_allowed_is_said_for_every_setting() -> None:
    assert allowed(RunConfig.model_fields["steps"]) == "a whole number >= 1, or none"
    assert allowed(LearnerConfig.model_fields["betas"]) == "a list of 2: a number, a number"
    assert allowed(RunConfig.model_fields["output_dir"]) == "a path"


def test_a_run_describes_itself_whole(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(
            ["git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments],
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )

    agent = tmp_path / "agent.py"
    agent.write_text("x = 1\n")
    assert git_revision(tmp_path) is None
    git("init")
    assert git_revision(tmp_path, agent) == {"revision": None, "dirty": True}
    git("add", "agent.py")
    git("commit", "-m", "one")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "x").write_text("a run's own output is no change of the code")
    resolved = resolve(ALGORITHMS, flags={"seed": "3"})
    description = describe_run(resolved, agent)
    assert description["git"]["dirty"] is False and re.fullmatch("[0-9a-f]{40}", description["git"]["revision"])
    agent.write_text("x = 2\n")
    assert describe_run(resolved, agent)["git"]["dirty"] is True
    assert description["config"]["seed"] == description["seed"] == 3
    assert description["algorithm"]["name"] == "grpo"
    assert description["sources"]["seed"] == "flag --set"
    assert {"python", "agentlightning", "torch", "transformers"} <= set(description["versions"])
    json.dumps(description)


def test_settings_load_no_torch() -> None:
    code = (
        "import sys; from agentlightning.algorithms import ALGORITHMS; from agentlightning.settings.sources import resolve\n"
        "resolve(ALGORITHMS); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
