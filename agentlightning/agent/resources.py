"""Resources: what a user's agent is handed besides its task, namely models to call, prompt templates, and the names
they go by.

These are plain values of the user's side. Nothing here knows of engines or stores; the runner fills in endpoints, and
``to_json`` and ``from_json`` are the form in which a version of the resources is recorded and sent to agents. Keys and
endpoints are never part of that form.
"""

from __future__ import annotations

import logging
import string
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar, cast
from urllib.parse import urlsplit

from agentlightning.agent.plain import Plain
from agentlightning.errors import ConfigError, MissingExtra, TaskError
from agentlightning.nouns import Json
from agentlightning.records.json_values import exact_json

logger = logging.getLogger("agentlightning")

Item_co = TypeVar("Item_co", covariant=True)

ENGINES = ("f-string", "jinja")
MAIN = "main_llm"
"""The name under which the trained model is handed over where the user named none."""
POLICY = "main"
"""The name of the policy that an LLM without an endpoint is."""
SHORTEST_KEY = 12
"""Characters from which an API key is a secret: shorter ones ("EMPTY", "none") are what endpoints without keys are
given, and are ordinary words."""


class Dataset(Protocol[Item_co]):
    """Tasks: anything with a length and items by position, such as a list."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Item_co: ...


@dataclass(kw_only=True)
class LLM(Plain):
    """A model to call. One without an ``endpoint`` is the run's own: the runner hands it over with the attempt's
    endpoint, and its calls are trained.

    One with an ``endpoint`` is somebody else's: an external model. It too is handed over with the attempt's endpoint,
    and ``model`` is then its name in the resources. The gateway passes its calls on to ``endpoint``, an OpenAI-like
    base URL, with ``api_key`` and the true ``model``, records them as they are, and trains none of them. Neither
    ``endpoint`` nor ``api_key`` is recorded, nor reaches the agent. ``name`` ("openai/some-model") is another spelling
    of ``model``. ``sampling_parameters`` are what the agent may pass on; in training the run's own temperature, top_p
    and top_k hold, and both are recorded.
    """

    endpoint: str = ""
    model: str = ""
    sampling_parameters: dict[str, Json] = field(default_factory=dict[str, Json])
    api_key: str | None = field(default=None, repr=False)
    name: str = ""
    tokenizer_only: bool = False
    resource_type: str = field(default="llm", repr=False, compare=False)

    def __post_init__(self) -> None:
        self.model = self.model or self.name
        if self.resource_type not in ("llm", "proxy_llm"):
            raise ConfigError(f"LLM(resource_type={self.resource_type!r}): it is 'llm', leave it out")

    def get_base_url(self, rollout_id: str | None = None, attempt_id: str | None = None) -> str:
        """The base URL for a client. An LLM with an endpoint of its own answers it to everyone."""
        del rollout_id, attempt_id
        return self.endpoint


@dataclass(kw_only=True)
class ExternalLLM(LLM):
    """Somebody else's model as the record and the runner know it: only the gateway knows its endpoint, its key and its
    true name."""


@dataclass(kw_only=True)
class ProxyLLM(LLM):
    """A model as one attempt sees it, the run's or somebody else's: its endpoint is good for that attempt's calls
    alone."""

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
class PromptTemplate(Plain):
    """A prompt with places to fill in: ``{question}`` under ``f-string``, ``{{ question }}`` under ``jinja`` (which
    needs jinja2)."""

    template: str
    engine: Literal["f-string", "jinja"] = "f-string"

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise ConfigError(f"PromptTemplate(engine={self.engine!r}): known are 'f-string' and 'jinja'")

    def format(self, **values: Any) -> str:
        """The template with ``values`` filled in; one that has no place in it is a warning. Raises ConfigError naming
        what is missing, MissingExtra without jinja2."""
        return self._fill_jinja(values) if self.engine == "jinja" else self._fill_plain(values)

    def _fill_plain(self, values: Mapping[str, Any]) -> str:
        try:
            needed = {
                name.split(".")[0].split("[")[0]
                for _, name, _, _ in string.Formatter().parse(self.template)
                if name is not None
            }
            missing = sorted(needed - set(values))
            if missing:
                names = ", ".join("{" + name + "}" for name in missing)
                hint = "" if all(name.isidentifier() for name in missing) else "; write {{ and }} for literal braces"
                raise ConfigError(
                    f"the prompt template needs {names}, and got {', '.join(sorted(values)) or 'nothing'}{hint}"
                )
            self._note_surplus(needed, values)
            return self.template.format(**values)
        except (ValueError, LookupError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"the prompt template cannot be filled in: {error}; write {{{{ and }}}} for literal braces"
            ) from error

    def _note_surplus(self, needed: Collection[str], values: Mapping[str, Any]) -> None:
        """Says once that values have no place: a whole task is often passed, so that is no error."""
        surplus = sorted(set(values) - set(needed))
        if surplus and "_said" not in self.__dict__:
            self.__dict__["_said"] = True
            logger.warning(
                "the prompt template has no place for %s: it takes %s",
                ", ".join(surplus), ", ".join(sorted(needed)) or "nothing",
            )  # fmt: skip

    def _fill_jinja(self, values: Mapping[str, Any]) -> str:
        try:
            import jinja2
            import jinja2.meta
            import jinja2.sandbox
        except ImportError as error:
            raise MissingExtra("PromptTemplate(engine='jinja') needs jinja2: pip install jinja2") from error
        try:
            sandbox = jinja2.sandbox.SandboxedEnvironment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
            self._note_surplus(jinja2.meta.find_undeclared_variables(sandbox.parse(self.template)), values)
            return sandbox.from_string(self.template).render(**values)
        except jinja2.UndefinedError as error:
            raise ConfigError(f"the prompt template needs a value it did not get: {error.message}") from error
        except jinja2.TemplateError as error:
            raise ConfigError(f"the prompt template cannot be filled in: {error}") from error


class UnknownResource(ConfigError, KeyError):
    """A resource of a name that there is not. A KeyError too, which is what a dict raises."""

    def __str__(self) -> str:
        return str(self.args[0])


class NamedResources(dict[str, Any]):
    """The resources of a run by name: a dict. ``NamedResources({"main_llm": LLM(...), "judge":
    LLM(endpoint=...)})``."""

    def __missing__(self, name: object) -> Any:
        raise UnknownResource(
            f"there is no resource {name!r}: there are {', '.join(map(repr, self)) or 'none'}; pass it as "
            f"resources={{{name!r}: ...}}"
        )

    def llms(self) -> Iterator[tuple[str, LLM]]:
        return ((name, value) for name, value in self.items() if isinstance(value, LLM))

    def prompt_template(self) -> PromptTemplate | None:
        """The one under the name ``prompt_template``, else the first there is."""
        named = self.get("prompt_template")
        if isinstance(named, PromptTemplate):
            return named
        return next((value for value in self.values() if isinstance(value, PromptTemplate)), None)

    def to_json(self) -> dict[str, Json]:
        """As it is recorded, without keys and endpoints. Raises ConfigError for a value that is neither an LLM, a
        PromptTemplate nor JSON."""
        return {name: _encode(name, value) for name, value in self.items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> NamedResources:
        return cls({name: _decode(value) for name, value in data.items()})

    def external(self) -> dict[str, LLM]:
        """The models of somebody else's. Raises ConfigError, which names the one that cannot be called."""
        found = {name: llm for name, llm in self.llms() if llm.endpoint}
        for name, llm in found.items():
            _check_external(name, llm)
        return found

    def main_is_external(self) -> bool:
        """Whether the model that agents are handed as theirs is somebody else's."""
        main = self.get(MAIN)
        return isinstance(main, LLM) and bool(main.endpoint)

    def with_own_main(self) -> NamedResources:
        """The same for a run that has a model: agents are handed that one as theirs, with the sampling parameters that
        were given."""
        main = self[MAIN]
        return NamedResources({**self, MAIN: LLM(sampling_parameters=dict(main.sampling_parameters))})

    def keys_of_external(self) -> tuple[str, ...]:
        """Their API keys, which agents must not see. Raises ConfigError as ``external`` does."""
        return tuple(llm.api_key for llm in self.external().values() if llm.api_key)

    def missing(self, recorded: NamedResources) -> list[str]:
        """External models of a recorded version that are none here: their endpoints were not recorded."""
        mine = {name for name, llm in self.llms() if llm.endpoint}
        return [name for name, llm in recorded.llms() if isinstance(llm, ExternalLLM) and name not in mine]

    def merged(self, recorded: NamedResources) -> NamedResources:
        """These with a recorded version laid over them. Models stay as they are given here, for only here they have
        their endpoints."""
        mine = {name for name, value in self.items() if isinstance(value, LLM)}
        return NamedResources({**self, **{name: value for name, value in recorded.items() if name not in mine}})


def _encode(name: str, value: object) -> Json:
    if isinstance(value, LLM):
        external = bool(value.endpoint) or isinstance(value, ExternalLLM)
        served = {"external": True} if external else {"policy": POLICY}
        return {**served, "model": value.model, "sampling_parameters": dict(value.sampling_parameters)}
    if name == MAIN:
        raise ConfigError(
            f"resources[{MAIN!r}]: expected LLM(...), which agents are handed as their model, not {value!r:.60} "
            f"({type(value).__name__})"
        )
    if isinstance(value, PromptTemplate):
        return {"template": value.template, "engine": value.engine}
    try:
        return {"value": exact_json(value, f"resources[{name!r}]")}
    except TaskError as error:
        raise ConfigError(f"{error} (a resource is an LLM, a PromptTemplate or a JSON value)") from None


def _decode(value: Json) -> Any:
    if not isinstance(value, dict):
        return value
    record = cast("dict[str, Json]", value)
    if "policy" in record or "external" in record:
        parameters = dict(record.get("sampling_parameters") or {})
        kind = ExternalLLM if "external" in record else LLM
        return kind(model=record.get("model", ""), sampling_parameters=parameters)
    if "template" in record:
        return PromptTemplate(record["template"], record.get("engine", "f-string"))
    return record.get("value", record)


def refuse_clash(external: Iterable[str], taken: Collection[str]) -> None:
    """Raises ConfigError where an external model has a name that means a policy."""
    for name in external:
        if name in taken:
            raise ConfigError(
                f"resource {name!r} is an external model (an LLM with an endpoint), and {name!r} is the name of a "
                "policy that is trained: give the resource another name"
            )


def _check_external(name: str, llm: LLM) -> None:
    what = f"resource {name!r}: LLM(endpoint={llm.endpoint!r})"
    try:
        url = urlsplit(llm.endpoint)
        host, _ = url.hostname, url.port
    except ValueError as error:
        raise ConfigError(f"{what} is no URL: {error}") from error
    if url.scheme not in ("http", "https") or not host or any(letter.isspace() for letter in llm.endpoint):
        raise ConfigError(f"{what} is no URL: give a base URL such as 'https://api.openai.com/v1'")
    if url.username is not None or url.password is not None:
        raise ConfigError(
            f"resource {name!r}: the endpoint of an LLM holds a user name or password: pass it as api_key"
        )
    if url.path.rstrip("/").endswith(("/chat/completions", "/responses", "/messages")):
        raise ConfigError(f"{what} ends in the path of a call: give the base URL, without it")
    if not llm.model:
        raise ConfigError(f"{what} names no model: pass model=, the name that the endpoint knows it by")
    if not (llm.api_key or "").isprintable() or not (llm.api_key or "").isascii():
        raise ConfigError(f"resource {name!r}: the api_key holds characters that no HTTP header can carry")
    if not name or not name.isprintable():
        raise ConfigError(f"resource {name!r}: agents call an external model by this name: use a printable one")
