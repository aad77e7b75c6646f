"""Resources: what a user's agent is handed besides its task, namely models to call, prompt templates, and the names they go by.

These are plain values of the user's side. Nothing here knows of engines or stores; the runner fills in endpoints, and ``to_json`` and
``from_json`` are the form in which a version of the resources is recorded. API keys are never part of that form.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar, cast

from agentlightning.errors import ConfigError, MissingExtra
from agentlightning.types import Json

Item_co = TypeVar("Item_co", covariant=True)

ENGINES = ("f-string", "jinja")
MAIN = "main_llm"
"""The name under which the trained model is handed over where the user named none."""


class Dataset(Protocol[Item_co]):
    """Tasks: anything with a length and items by position, such as a list."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Item_co: ...


@dataclass(kw_only=True)
class LLM:
    """A model to call. One without an ``endpoint`` is the run's own: the runner hands it over with the attempt's endpoint, and its calls are trained.

    One with an ``endpoint`` is somebody else's: it is handed over as given, and its calls are neither recorded nor trained.
    ``name`` ("openai/some-model") is another spelling of ``model``. ``sampling_parameters`` are what the agent may pass on; in training the run's
    own temperature, top_p and top_k hold, and both are recorded.
    """

    endpoint: str = ""
    model: str = ""
    sampling_parameters: dict[str, Json] = field(default_factory=dict[str, Json])
    api_key: str | None = field(default=None, repr=False)
    name: str = ""
    tokenizer_only: bool = False

    def __post_init__(self) -> None:
        self.model = self.model or self.name

    def get_base_url(self, rollout_id: str | None = None, attempt_id: str | None = None) -> str:
        """The base URL for a client. An LLM with an endpoint of its own answers it to everyone."""
        del rollout_id, attempt_id
        return self.endpoint


@dataclass(kw_only=True)
class ProxyLLM(LLM):
    """The run's model as one attempt sees it: its endpoint is good for that attempt's calls alone."""

    rollout_id: str = ""
    attempt_id: str = ""

    def get_base_url(self, rollout_id: str | None = None, attempt_id: str | None = None) -> str:
        """The base URL for a client. Raises ConfigError when it is asked for another attempt's."""
        if (rollout_id and rollout_id != self.rollout_id) or (attempt_id and attempt_id != self.attempt_id):
            raise ConfigError(
                f"this endpoint belongs to attempt {self.attempt_id!r} of rollout {self.rollout_id!r}, "
                f"not to {attempt_id!r} of {rollout_id!r}: use the llm that this attempt was handed"
            )
        return self.endpoint


@dataclass
class PromptTemplate:
    """A prompt with places to fill in: ``{question}`` under ``f-string``, ``{{ question }}`` under ``jinja`` (which needs jinja2)."""

    template: str
    engine: Literal["f-string", "jinja"] = "f-string"

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise ConfigError(f"PromptTemplate(engine={self.engine!r}): known are 'f-string' and 'jinja'")

    def format(self, **values: Any) -> str:
        """The template with ``values`` filled in. Raises ConfigError naming what is missing, MissingExtra without jinja2."""
        return self._fill_jinja(values) if self.engine == "jinja" else self._fill_plain(values)

    def _fill_plain(self, values: Mapping[str, Any]) -> str:
        try:
            needed = {name.split(".")[0].split("[")[0] for _, name, _, _ in string.Formatter().parse(self.template) if name is not None}
            missing = sorted(needed - set(values))
            if missing:
                names = ", ".join("{" + name + "}" for name in missing)
                hint = "" if all(name.isidentifier() for name in missing) else "; write {{ and }} for literal braces"
                raise ConfigError(f"the prompt template needs {names}, and got {', '.join(sorted(values)) or 'nothing'}{hint}")
            return self.template.format(**values)
        except (ValueError, LookupError, AttributeError, TypeError) as error:
            raise ConfigError(f"the prompt template cannot be filled in: {error}; write {{{{ and }}}} for literal braces") from error

    def _fill_jinja(self, values: Mapping[str, Any]) -> str:
        try:
            import jinja2
            import jinja2.sandbox
        except ImportError as error:
            raise MissingExtra("PromptTemplate(engine='jinja') needs jinja2: pip install jinja2") from error
        try:
            sandbox = jinja2.sandbox.SandboxedEnvironment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
            return sandbox.from_string(self.template).render(**values)
        except jinja2.UndefinedError as error:
            raise ConfigError(f"the prompt template needs a value it did not get: {error.message}") from error
        except jinja2.TemplateError as error:
            raise ConfigError(f"the prompt template cannot be filled in: {error}") from error


class NamedResources(dict[str, Any]):
    """The resources of a run by name: a dict. ``NamedResources({"main_llm": LLM(...), "judge": LLM(endpoint=...)})``."""

    def llms(self) -> Iterator[tuple[str, LLM]]:
        return ((name, value) for name, value in self.items() if isinstance(value, LLM))

    def prompt_template(self) -> PromptTemplate | None:
        """The one under the name ``prompt_template``, else the first there is."""
        named = self.get("prompt_template")
        if isinstance(named, PromptTemplate):
            return named
        return next((value for value in self.values() if isinstance(value, PromptTemplate)), None)

    def to_json(self) -> dict[str, Json]:
        """As it is recorded, without API keys. Raises ConfigError for a value that is neither an LLM, a PromptTemplate nor JSON."""
        return {name: _encode(name, value) for name, value in self.items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> NamedResources:
        return cls({name: _decode(value) for name, value in data.items()})

    def merged(self, recorded: NamedResources) -> NamedResources:
        """These with a recorded version laid over them. Models stay as they are given here, for only here they carry their keys."""
        mine = {name for name, value in self.items() if isinstance(value, LLM)}
        return NamedResources({**self, **{name: value for name, value in recorded.items() if name not in mine}})


def _encode(name: str, value: object) -> Json:
    if isinstance(value, LLM):
        served = {"endpoint": value.endpoint} if value.endpoint else {"policy": "main"}
        return {**served, "model": value.model, "sampling_parameters": dict(value.sampling_parameters)}
    if isinstance(value, PromptTemplate):
        return {"template": value.template, "engine": value.engine}
    if is_json(value):
        return {"value": value}
    raise ConfigError(f"resource {name!r} is a {type(value).__name__}: expected an LLM, a PromptTemplate or a JSON value")


def _decode(value: Json) -> Any:
    if not isinstance(value, dict):
        return value
    record = cast("dict[str, Json]", value)
    if "policy" in record or "endpoint" in record:
        parameters = dict(record.get("sampling_parameters") or {})
        return LLM(endpoint=record.get("endpoint", ""), model=record.get("model", ""), sampling_parameters=parameters)
    if "template" in record:
        return PromptTemplate(record["template"], record.get("engine", "f-string"))
    return record.get("value", record)


def is_json(value: object) -> bool:
    """Whether a value is plain JSON as it stands (a tuple is not: it would come back as a list)."""
    if value is None or isinstance(value, str | bool | int):
        return True
    if isinstance(value, float):
        return value - value == 0  # NaN and infinity are not JSON
    if isinstance(value, list):
        return all(is_json(item) for item in cast("list[object]", value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_json(item) for key, item in cast("dict[object, object]", value).items())
    return False
