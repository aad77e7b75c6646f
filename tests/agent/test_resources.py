import sys

import pytest

from agentlightning.agent.resources import LLM, ExternalLLM, NamedResources, PromptTemplate, ProxyLLM
from agentlightning.errors import ConfigError, MissingExtra


def test_a_name_is_another_spelling_of_the_model():
    assert LLM(name="openai/gpt-x").model == "openai/gpt-x"
    assert LLM(model="a", name="b").model == "a"


def test_an_endpoint_of_ones_own_is_answered_to_everyone():
    assert LLM(endpoint="http://x/v1").get_base_url("any", "attempt") == "http://x/v1"


def test_an_attempts_endpoint_is_not_given_for_another_attempt():
    llm = ProxyLLM(endpoint="http://x/v1", rollout_id="r", attempt_id="r.1")
    assert llm.get_base_url("r", "r.1") == llm.get_base_url() == "http://x/v1"
    with pytest.raises(ConfigError, match=r"belongs to attempt 'r\.1'.*not to 'r\.2'"):
        llm.get_base_url("r", "r.2")


def test_a_template_is_filled_in_by_name():
    assert PromptTemplate("Q: {question} {{x}}").format(question="why", unused=1) == "Q: why {x}"
    assert PromptTemplate(template="{a[k]} {n:03d}", engine="f-string").format(a={"k": "v"}, n=7) == "v 007"
    assert PromptTemplate("Q: {{ question }}", engine="jinja").format(question="why") == "Q: why"


@pytest.mark.parametrize(
    ("template", "engine", "says"),
    [
        ("{question} {context}", "f-string", r"needs \{context\}, and got question"),
        ('{"json": 1} {question}', "f-string", r"literal braces"),
        ("{} {question}", "f-string", r"literal braces"),
        ("{question.nothing}", "f-string", r"cannot be filled in.*nothing"),
        ("{question", "f-string", r"cannot be filled in"),
        ("{{ context }}", "jinja", r"needs a value it did not get: 'context'"),
        ("{% if %}", "jinja", r"cannot be filled in"),
    ],
)
def test_what_a_template_lacks_is_said_by_name(template, engine, says):
    with pytest.raises(ConfigError, match=says):
        PromptTemplate(template, engine).format(question="why")


def test_an_unknown_template_engine_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"engine='mustache'.*'f-string' and 'jinja'"):
        PromptTemplate("x", engine="mustache")  # type: ignore[arg-type]


def test_jinja_that_is_not_installed_is_one_line_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtra, match="pip install jinja2"):
        PromptTemplate("{{ x }}", engine="jinja").format(x=1)


def test_resources_are_recorded_without_keys_and_endpoints():
    resources = NamedResources(
        main_llm=LLM(model="m", sampling_parameters={"temperature": 0.5}),
        judge=LLM(endpoint="http://x/v1", model="j", api_key="secret"),
        prompt=PromptTemplate("{q}"),
        limit=3,
        options={"policy_free": True},
    )
    recorded = resources.to_json()
    assert "secret" not in repr(recorded) and "http://x" not in repr(recorded) and "secret" not in repr(resources)
    again = NamedResources.from_json(recorded)
    assert again["main_llm"] == resources["main_llm"] and again["prompt"] == resources["prompt"]
    assert again["limit"] == 3 and again["options"] == {"policy_free": True}
    assert again["judge"] == ExternalLLM(model="j") and again.to_json() == recorded
    assert resources.missing(again) == [] and NamedResources(limit=3).missing(again) == ["judge"]


def test_a_recorded_template_replaces_the_given_one_and_models_keep_their_keys():
    given = NamedResources(judge=LLM(endpoint="http://x", api_key="k"), prompt=PromptTemplate("old"), a=1)
    merged = given.merged(
        NamedResources.from_json({"prompt": {"template": "new"}, "judge": {"external": True}, "b": 2})
    )
    assert (
        merged["prompt"].template == "new" and merged["judge"].api_key == "k" and (merged["a"], merged["b"]) == (1, 2)
    )


def test_a_resource_that_is_no_resource_is_refused_by_name():
    with pytest.raises(
        ConfigError, match=r"^resources\['handle'\] is an object: .*an LLM, a PromptTemplate or a JSON value"
    ):
        NamedResources(handle=object()).to_json()


def test_the_template_is_the_one_of_that_name_or_else_the_first():
    first, named = PromptTemplate("first"), PromptTemplate("named")
    assert NamedResources(a=1, b=first, c=named).prompt_template() is first
    assert NamedResources(b=first, prompt_template=named).prompt_template() is named
    assert NamedResources(a=1).prompt_template() is None
