import asyncio
import copy
import dataclasses
import functools
import json
import pickle
import subprocess
import sys
import textwrap

import pytest

from agentlightning import LLM, LitAgent, NamedResources, PromptTemplate, llm_rollout, prompt_rollout, rollout
from agentlightning.agent.calling import AgentSpec, Handed, as_agent
from agentlightning.agent.loading import load_object
from agentlightning.agent.rollouts import Attempt, Rollout
from agentlightning.errors import ConfigError
from agentlightning.nouns import Mode

LLM_HANDED = LLM(endpoint="http://x/v1", model="m")


def handed(task="task", **resources):
    view = Rollout(rollout_id="r1", input=task, mode=Mode.TRAIN, attempt=Attempt(attempt_id="r1.1"))
    return Handed(task, LLM_HANDED, NamedResources(main_llm=LLM_HANDED, **resources), view)


def call(agent, mode=Mode.TRAIN, **resources):
    value = as_agent(agent).load().call(mode, handed(**resources))
    return asyncio.run(value) if asyncio.iscoroutine(value) else value


# --------------------------------------------------------------------------- functions


def test_the_first_parameter_is_the_task_whatever_its_name_and_the_rest_come_by_name_in_any_order():
    def agent(anything, rollout, llm, resources):
        return anything, rollout.rollout_id, llm.model, resources["main_llm"].endpoint

    assert call(agent) == ("task", "r1", "m", "http://x/v1")


def test_a_function_may_take_the_task_alone():
    assert call(lambda task: task) == "task"


def test_async_functions_are_awaitable():
    async def agent(task, llm):
        return llm.model

    assert call(agent) == call(rollout(agent)) == "m"


@pytest.mark.parametrize("decorate", [rollout, rollout(), rollout(model=LLM(name="openai/x")), llm_rollout])
def test_a_decorated_function_runs_and_can_still_be_called_as_it_is(decorate):
    @decorate
    def agent(task, llm, *, times=2):
        "Doc."
        return (task, llm.model, times)

    assert call(agent) == ("task", "m", 2)
    assert agent("t", LLM_HANDED, times=3) == ("t", "m", 3)
    assert agent.__name__ == "agent" and agent.__doc__ == "Doc."
    assert isinstance(agent, LitAgent)


def test_positional_only_and_defaulted_parameters_are_handed_over():
    def agent(task, rollout, /, llm=None, unknown=5, *args, resources=None, **kwargs):
        return rollout.id, llm.model, unknown, args, "main_llm" in resources, kwargs

    assert call(agent) == ("r1", "m", 5, (), True, {})


def test_partials_and_objects_that_can_be_called_are_agents():
    class Callable:
        def __call__(self, task, llm):
            return llm.model

    def agent(task, factor, llm):
        return factor

    assert call(Callable()) == "m"
    assert call(functools.partial(agent, factor=3)) == 3


def test_a_template_is_handed_from_the_resources_and_its_default_holds_without_one():
    template = PromptTemplate("{q}")

    @prompt_rollout
    def needs(task, prompt_template):
        return prompt_template

    def may(task, prompt_template="default"):
        return prompt_template

    assert call(needs, mine=template) is template and call(may, mine=template) is template
    assert call(may) == "default"
    assert as_agent(needs).load().needs_template and not as_agent(may).load().needs_template
    with pytest.raises(ConfigError, match="takes prompt_template and the run's resources hold none"):
        call(needs)


def test_the_rollout_shows_who_runs():
    def agent(task, rollout):
        return (
            rollout.rollout_id,
            rollout.attempt.attempt_id,
            rollout.attempt.sequence_id,
            rollout.mode == "train",
            rollout.input,
        )

    assert call(agent) == ("r1", "r1.1", 1, True, "task")


# --------------------------------------------------------------------------- classes


def test_a_class_may_define_any_of_the_methods_in_either_form():
    class Both(LitAgent):
        def rollout(self, task, resources, rollout):
            return "rollout"

        async def validation_rollout_async(self, task, resources, rollout):
            return "validation"

    class Training(LitAgent):
        async def training_rollout_async(self, task, rollout_id, resources):
            return rollout_id, sorted(resources)

    assert (call(Both()), call(Both(), Mode.DEV), call(Both(), Mode.VAL)) == ("rollout", "rollout", "validation")
    assert call(Training()) == ("r1", ["main_llm"])
    assert set(as_agent(Training()).load().methods) == {Mode.TRAIN, Mode.DEV}
    with pytest.raises(ConfigError, match="no validation_rollout and no rollout"):
        call(Training(), Mode.VAL)


def test_a_class_need_not_call_its_base():
    class Mine(LitAgent):
        def __init__(self, answer):
            self.answer = answer

        def rollout(self, task, llm):
            return self.answer

    assert call(Mine(7)) == 7


class Writes(LitAgent):
    def __init__(self):
        super().__init__(trained_agents="writer|editor")

    def rollout(self, task): ...


class Declares(LitAgent):
    trained_agents = "writer|editor"

    def rollout(self, task): ...


@rollout
def attributed(task): ...


attributed.trained_agents = "writer|editor"


@pytest.mark.parametrize("agent", [Writes(), Declares(), attributed])
def test_an_agent_says_itself_which_agents_of_its_program_are_trained(agent):
    assert as_agent(agent).load().trained_agents == "writer|editor"


def test_an_agent_that_says_nothing_leaves_the_choice_to_the_run():
    assert as_agent(rollout(lambda task: 1)).load().trained_agents is None
    assert as_agent(lambda task: 1).load().trained_agents is None


def marking(marks):
    view = handed().rollout
    view.marks_go_to(marks.append)
    return view


def test_a_mark_goes_to_the_runner_and_is_no_part_of_what_the_view_shows():
    marks = []
    view = marking(marks)
    view.mark_agent_as_trainable(" planner ")
    assert marks == ["planner"]
    assert view == handed().rollout and repr(view) == repr(handed().rollout)
    assert pickle.loads(pickle.dumps(view)) == view and copy.deepcopy(view) == view
    assert json.loads(json.dumps(dataclasses.asdict(view)))["rollout_id"] == "r1"


# --------------------------------------------------------------------------- what is refused


class Empty(LitAgent): ...


class Unreadable(LitAgent):
    trained_agents = "writer("

    def rollout(self, task): ...


def yields(task):
    yield 1


async def yields_async(task):
    yield 1


@pytest.mark.parametrize(
    ("agent", "says"),
    [
        (42, r"'int' is int and cannot be called"),
        ({"agent": 1}, "cannot be called"),
        (None, "cannot be called"),
        (Empty(), r"defines none of rollout, training_rollout, validation_rollout"),
        (Empty, r"is a class: pass an instance of it, such as agent = Empty\(\)"),
        (dict, r"is a class: pass a function"),
        (Unreadable(), r"agent 'Unreadable': trained_agents='writer\(' is no regular expression"),
        (lambda: 1, "takes no task"),
        (lambda *, task: 1, "takes no task"),
        (
            lambda task, server: 1,
            r"parameter 'server' that nothing is known for: known are llm, resources, prompt_template, rollout, tokenizer, after",
        ),
        (lambda task, rollout_id: 1, "parameter 'rollout_id'"),
        (yields, "is a generator"),
        (yields_async, "is a generator"),
        (dict.get, r"parameter 'key'"),
        ("agent.py", "expected FILE.py:name or pkg.mod:name"),
        ("agent.py:", "expected FILE.py:name"),
        ("agent.txt:agent", "neither a .py file nor a module"),
        ("some/agent:agent", "neither a .py file nor a module"),
        ("nowhere.py:agent", "cannot be read: No such file"),
    ],
)
def test_an_agent_that_cannot_be_called_is_refused_in_one_line(agent, says):
    with pytest.raises(ConfigError, match=says) as caught:
        as_agent(agent)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: rollout(model=LLM(name="x", tokenizer_only=True)), r"tokenizer_only"),
        (lambda: llm_rollout(lambda task: 1), r"@llm_rollout needs a parameter named 'llm'"),
        (lambda: prompt_rollout(lambda task, llm: 1), r"@prompt_rollout needs a parameter named 'prompt_template'"),
        (lambda: LitAgent(trained_agents="a["), r"LitAgent: trained_agents='a\[' is no regular expression"),
        (lambda: LitAgent(trained_agents=["a"]), r"trained_agents=\['a'\] is no text"),
        (lambda: LitAgent(trained_agents=""), r"trained_agents='' is no text"),
        (
            lambda: handed().rollout.mark_agent_as_trainable("a"),
            r"mark_agent_as_trainable\('a'\) was called outside any attempt",
        ),
        (lambda: marking([]).mark_agent_as_trainable(" "), r"mark_agent_as_trainable\(' '\): expected the name"),
        (lambda: marking([]).mark_agent_as_trainable(None), r"mark_agent_as_trainable\(None\)"),
        (lambda: marking([]).mark_agent_as_trainable("two\nlines"), "one line of text"),
        (lambda: marking([]).mark_agent_as_trainable("\ud800"), "one line of text"),
        (lambda: marking([]).mark_agent_as_trainable("x" * 201), "at most 200 characters"),
        (
            lambda: marking([]).mark_agent_as_trainable("a/b"),
            r"mark_agent_as_trainable\('a/b'\): expected.*without '/'",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


# --------------------------------------------------------------------------- paths


def file(tmp_path, text, name="my_agent.py"):
    path = tmp_path / name
    path.write_text(textwrap.dedent(text))
    return path


@pytest.fixture(autouse=True)
def _clean_modules(monkeypatch):
    before = dict(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in set(sys.modules) - set(before):
        del sys.modules[name]


def test_a_path_is_checked_without_being_imported_and_imported_when_it_is_loaded(tmp_path):
    path = file(tmp_path, "import helper_of_agent\nLOADED = True\ndef agent(task, llm): return helper_of_agent.VALUE\n")
    file(tmp_path, "VALUE = 5", "helper_of_agent.py")
    spec = as_agent(f"{path}:agent")
    assert isinstance(spec, AgentSpec) and spec.from_path and spec.file == path and spec.name == "agent"
    assert "my_agent" not in sys.modules
    assert spec.load().call(Mode.TRAIN, handed()) == 5
    assert sys.modules["my_agent"].LOADED


def test_a_file_whose_name_is_taken_gets_another(tmp_path):
    path = file(tmp_path, "import json\nassert json.dumps\ndef agent(task): return __name__\n", "json.py")
    name = as_agent(f"{path}:agent").load().call(Mode.TRAIN, handed())
    assert name.startswith("_agent_json_") and hasattr(sys.modules["json"], "dumps")


def test_dotted_names_and_modules_are_found(tmp_path):
    package = tmp_path / "pkg_of_agent"
    package.mkdir()
    file(package, "", "__init__.py")
    file(package, "from . import other\nclass A:\n    @staticmethod\n    def run(task): return other.X\n", "mod.py")
    file(package, "X = 3", "other.py")
    sys.path.insert(0, str(tmp_path))
    assert as_agent("pkg_of_agent.mod:A.run").load().call(Mode.TRAIN, handed()) == 3
    with pytest.raises(ConfigError, match=r"relative import.*name it as a module"):
        as_agent(f"{package / 'mod.py'}:A.run").load()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def agent(task: pass", r"my_agent.py line 1 is not valid Python"),
        ("def agnet(task): pass", r"defines no 'agent'; did you mean 'agnet'\?"),
        ("agent = 3", r"'agent' is int and cannot be called"),
    ],
)
def test_a_wrong_file_is_said_in_one_line(tmp_path, text, says):
    with pytest.raises(ConfigError, match=says) as caught:
        as_agent(f"{file(tmp_path, text)}:agent").load()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "import not_there_at_all\ndef agent(task): pass",
            r"No module named 'not_there_at_all' \(my_agent.py:1\); install what provides",
        ),
        ("def agent(task): pass\n\n1 / 0", r"ZeroDivisionError: division by zero \(my_agent.py:3\)"),
        ("def agent(task): pass\nraise SystemExit(2)", r"SystemExit: 2"),
        ("from os import *\n", r"defines no 'agent'"),
    ],
)
def test_a_failing_import_is_said_in_one_line_and_keeps_the_users_error(tmp_path, text, says):
    spec = as_agent(f"{file(tmp_path, text)}:agent")
    with pytest.raises(ConfigError, match=says) as caught:
        spec.load()
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None or "defines no" in says
    assert "my_agent" not in sys.modules or "defines no" in says


def test_a_module_that_is_not_there_is_said_as_such():
    with pytest.raises(ConfigError, match=r"neither a \.py file nor a module that can be found"):
        as_agent("nowhere_at_all.mod:agent")
    with pytest.raises(ConfigError, match=r"there is no module 'json\.nowhere' to import"):
        as_agent("json.nowhere:agent").load()


def test_any_object_can_be_loaded_by_its_path(tmp_path):
    assert load_object(f"{file(tmp_path, 'def grade(task, output): return 1')}:grade")("t", "o") == 1


def top_level(task):
    return 1


@rollout
def top_level_decorated(task):
    return 1


INSTANCE = type("Mine", (LitAgent,), {"rollout": lambda self, task: 1})()


@pytest.mark.parametrize("agent", [top_level, top_level_decorated, INSTANCE])
def test_a_top_level_object_knows_where_it_can_be_imported_again(agent):
    source = as_agent(agent).source
    assert source is not None and source.file == __file__
    assert load_object(f"{source.file}:{source.attribute}") is not None


def test_a_closure_or_a_lambda_knows_no_such_place():
    def inner(task):
        return 1

    assert as_agent(inner).source is None
    assert as_agent(lambda task: 1).source is None


def test_agents_and_runners_never_import_torch():
    code = """
        import sys
        import agentlightning.agent.calling, agentlightning.agent.rewards, agentlightning.agent.resources, agentlightning.agent.tasks, agentlightning.views.dev.report
        import agentlightning.runners.child, agentlightning.runners.zygote
        from agentlightning.runners.pool import RunnerPool
        heavy = {"torch", "transformers", "numpy"} & set(sys.modules)
        assert not heavy, heavy
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


def test_what_an_agents_process_imports_is_the_standard_library():
    code = """
        import sys
        from agentlightning import emit_reward, rollout
        import agentlightning.runners.child, agentlightning.runners.zygote
        tops = {name.split(".")[0] for name in sys.modules if getattr(sys.modules[name], "__file__", None)}
        foreign = {top for top in tops if "site-packages" in str(getattr(sys.modules.get(top), "__file__", ""))}
        assert not foreign, foreign
    """
    subprocess.run([sys.executable, "-S", "-c", textwrap.dedent(code)], check=True)
