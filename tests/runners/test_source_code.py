"""What an agent's text says of where its calls go, and of what answers instead of a call."""

from __future__ import annotations

import textwrap
from pathlib import Path
from types import ModuleType

import pytest

from agentlightning.runners.source_code import caches, fixed_settings


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes a module with this text; it is not run."""
    (tmp_path / "code").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    def make(text: str, dotenv: str = "") -> ModuleType:
        file = tmp_path / "code" / "agent.py"
        file.write_text(textwrap.dedent(text).lstrip())
        if dotenv:
            (tmp_path / "code" / ".env").write_text(dotenv)
        made = ModuleType("agent")
        made.__file__ = str(file)
        return made

    return make


def said(module: ModuleType) -> list[str]:
    return [f"{one.place} {one.what}" + (f" <- {one.origin}" if one.origin else "") for one in fixed_settings([module])]


@pytest.mark.parametrize(
    ("text", "dotenv", "says"),
    [
        ("OpenAI(base_url='https://a.example/v1')", "", ["agent.py:1 base_url='https://a.example/v1'"]),
        ("URL = 'https://a.example'\nOpenAI(base_url=URL)", "", ["agent.py:2 base_url=URL, which is "
                                                                 "'https://a.example' (agent.py:1)"]),
        (
            "OpenAI(base_url=os.environ['JUDGE_URL'])", "OTHER=1\nJUDGE_URL='https://a.example' # ours\n",
            ["agent.py:1 base_url=os.environ['JUDGE_URL'], which is 'https://set.example' <- .env:2 (JUDGE_URL)"],
        ),
        (
            "OpenAI(base_url=os.getenv('JUDGE_URL'))", "",
            ["agent.py:1 base_url=os.getenv('JUDGE_URL'), which is 'https://set.example' <- the variable JUDGE_URL"],
        ),
        (
            "OpenAI(base_url=os.getenv('NOT_SET', 'https://d.example'))", "",
            ["agent.py:1 base_url=os.getenv('NOT_SET', 'https://d.example'), which is 'https://d.example' <- its "
             "default"],
        ),
        ("OpenAI(base_url=os.environ['OPENAI_BASE_URL'])", "", []),
        ("load_dotenv(override=True)", "OPENAI_BASE_URL=https://a.example/v1\n",
        ["agent.py:1 load_dotenv(override=True) <- .env:1 (OPENAI_BASE_URL)"]),
        ("load_dotenv(override=True)", "LOG_LEVEL=1\n", []),
        ("load_dotenv()", "OPENAI_BASE_URL=https://a.example/v1\n", []),
        ("client = OpenAI(base_url='http://127.0.0.1:9')\nclient.with_options(base_url=llm.endpoint)", "", []),
    ],
)  # fmt: skip
def test_a_fixed_address_is_found_with_where_it_came_from(
    module, monkeypatch, text: str, dotenv: str, says: list[str]
) -> None:
    monkeypatch.setenv("JUDGE_URL", "https://set.example")
    assert said(module(text, dotenv)) == says


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("@lru_cache\ndef f(): ...", "@lru_cache"),
        ("@functools.cache\ndef f(): ...", "@functools.cache"),
        ("@memory.cache(ignore=[])\nasync def f(): ...", "@memory.cache"),
        ("litellm.cache = Cache()", "litellm.cache = ..."),
        ("set_llm_cache(InMemoryCache())", "set_llm_cache(...)"),
        ("litellm.enable_cache()", "litellm.enable_cache(...)"),
        ("memory = joblib.Memory('x')", "joblib.Memory(...)"),
        ("lm = dspy.LM('openai/x')", "dspy.LM(...) without cache=False"),
    ],
)
def test_a_cache_is_found_with_its_line(module, text: str, says: str) -> None:
    assert [(one.place, one.what) for one in caches([module(text)])] == [("agent.py:1", says)]


def test_what_is_no_cache_is_none(module) -> None:
    assert (
        caches([module("lm = dspy.LM('x', cache=False)\nstore = CacheStore()\n@property\ndef cache_size(self): ...")])
        == []
    )
