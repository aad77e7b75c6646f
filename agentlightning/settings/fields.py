"""Settings: typed, documented under each field, unknown keys refused with the nearest known ones.

A run is one `RunConfig`. Values come, later over earlier, from defaults, a TOML file, ``AGL_...`` environment variables
and flags or keyword arguments; `resolve` (sources.py) lays them over one another and says where each came from.
Nothing here imports torch.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from agentlightning.nouns import MAX_REWARD, ScorableReason
from agentlightning.settings.starters import folder_of
from agentlightning.text import LONGEST_NAME, at_home, clean_name

_SQLITE = "sqlite:///"

Score = Annotated[float, Field(ge=-MAX_REWARD, le=MAX_REWARD)]
"""A reward that is set."""


class Settings(BaseModel):
    """Base of all settings: frozen, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    def __new__(cls, *given: object, **settings: object) -> Self:
        """What a program passes is held to what a file may say (no "8" or True for a number), and refused in the same
        words."""
        if given or settings:
            from agentlightning.settings.sources import check_given

            check_given(cls, given, settings)
        return super().__new__(cls)


def _regular(pattern: str | None) -> str | None:
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
    return pattern


class ModelConfig(Settings):
    """The model that samples and is trained."""

    path: str = ""
    """A Hugging Face model folder or hub id, or the name of a starter that `agl model` has made. Needed by everything
    that samples or trains."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the weights that sample. `auto`: float32 on CPU, bfloat16 on CUDA."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, ... `auto`: the first CUDA device, else CPU."""
    tool_format: str | None = None
    """How tool calls are written, e.g. `hermes`, `llama3_json`, `mistral`, `harmony` or `text` (docs/templates.md has
    them all). None: chosen by probing the chat template."""
    keep_reasoning: bool = False
    """Where the chat template drops earlier reasoning: keep earlier turns as they were sampled all the same. Else each
    such turn begins a branch."""

    reasoning_tags: tuple[str, str] | None = None
    """What encloses the model's reasoning, e.g. `["<think>", "</think>"]`, so that replies give it out apart from the
    answer. None: the tags that the chat template or the tokenizer shows."""

    _finds_starters = field_validator("path")(folder_of)

    @field_validator("reasoning_tags")
    @classmethod
    def _two_tags(cls, value: tuple[str, str] | None) -> tuple[str, str] | None:
        if value is not None and not all(tag.strip() == tag != "" for tag in value):
            raise ValueError(f"{list(value)!r:.80} are no tags: two texts without white space around them")
        return value


class SamplingConfig(Settings):
    """How training samples."""

    temperature: float = Field(default=1.0, ge=0)
    """Higher is more random. 0 is greedy and refused in training."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Keep the smallest set of tokens whose probability is at least this. 1 keeps all."""
    top_k: int = Field(default=0, ge=0)
    """0 keeps the whole vocabulary."""
    max_tokens: int = Field(default=256, ge=1)
    """A ceiling on the tokens of one sample; an agent may ask for fewer."""
    owner: Literal["run", "agent"] = "run"
    """Who sets temperature, top_p and top_k. `run`: these values hold and the agent's are recorded; `agent`: the
    agent's request wins."""


class EvaluationConfig(Settings):
    """How validation and `agl eval` sample, and when validation happens."""

    temperature: float = Field(default=0.0, ge=0)
    """0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """As in `[sampling]`."""
    top_k: int = Field(default=0, ge=0)
    """As in `[sampling]`."""
    max_tokens: int = Field(default=256, ge=1)
    """A ceiling on the tokens of one sample."""
    every: int = Field(default=0, ge=0)
    """Validate after every this many steps; 0: only before the first and after the last."""
    before: bool = True
    """Validate before the first step."""
    after: bool = True
    """Validate after the last step."""
    rollouts_per_task: int = Field(default=1, ge=1)
    """More than one makes sense with a temperature above 0."""


class EngineConfig(Settings):
    """The engine inside the process."""

    slots: int = Field(default=64, ge=1)
    """Requests that decode at once; more wait in a queue."""
    kv_budget_gb: float | None = Field(default=None, gt=0)
    """Memory for keys and values, live and reusable. None: 2 GB on CPU, 40% of the free memory on CUDA."""
    context_length: int | None = Field(default=None, ge=2)
    """Tokens of a prompt and its sample. None: the model's own limit, at most what the KV budget holds."""
    prefix_cache: bool = True
    """Keep the keys and values of finished requests, so that a next turn computes only what is new."""


class LearnerConfig(Settings):
    """How a batch becomes the next version: AdamW on the algorithm's loss."""

    lr: float = Field(default=2e-5, gt=0)
    """AdamW's learning rate, at its peak where there is a schedule."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's decay rates of the gradient's first and second moment."""
    eps: float = Field(default=1e-8, gt=0)
    """AdamW's term against division by zero."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's decoupled weight decay."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the learning rate rises from 0."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """After the warmup, over the run's steps."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """The gradient is clipped to this norm."""
    epochs: int = Field(default=1, ge=1)
    """Passes over each step's batch."""
    minibatches: int = Field(default=1, ge=1)
    """Optimizer steps per pass; the batch's groups are divided among them."""
    layout: Literal["auto", "tree", "flat"] = "auto"
    """`tree` forwards what a group shares once; `flat` one row per path; `auto` takes the cheaper per group."""
    max_row_tokens: int = Field(default=8192, ge=16)
    """A row never holds more tokens than this; a single longer path is refused by name."""
    head_chunk: int = Field(default=1024, ge=1)
    """Positions whose logits are held at once."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them: less memory, more time."""
    old_logprobs: Literal["auto", "sampler", "recompute"] = "auto"
    """The ratio's denominator: what the sampler recorded, or recomputed by the learner before its first step. `auto`:
    `sampler` in float32, else `recompute`."""
    importance_cap: float = Field(default=2.0, gt=0)
    """With `recompute`: the truncated importance weight between learner and sampler."""
    memory_tuning: bool = True
    """On Linux CPU, keep freed memory in the process (page faults cost a third of a step)."""


class RunnerConfig(Settings):
    """How agents are run."""

    n_runners: int = Field(default=8, ge=1)
    """Attempts that run at once."""
    isolation: Literal["auto", "thread", "process"] = "auto"
    """`process`: own environment per attempt, killable. `thread`: past its deadline an attempt is abandoned. `auto`:
    process for `FILE.py:agent`, thread for a function object."""
    grader: Literal["auto", "process", "thread"] = "auto"
    """Where a grader runs. `process`: in processes of its own, at most 16. `thread`: in the program that trains, where
    it shares what that has loaded. `auto`: process where it can be imported again."""
    deadline: float = Field(default=300.0, gt=0)
    """Seconds an attempt may take, and then its grader."""
    max_attempts: int = Field(default=1, ge=1)
    """Attempts a failing rollout may use."""
    lease: float = Field(default=60.0, gt=0)
    """Seconds without a sign of life after which a runner counts as dead."""
    failure_reward: dict[ScorableReason, Score] = Field(default_factory=dict[ScorableReason, Score])
    """Score failures of these reasons instead of masking them, e.g. `{"agent_error": -1.0}`."""


class AgentRule(Settings):
    """How to recognise an agent of a program by what it asks: every condition that is given has to hold."""

    system: str | None = None
    """A regular expression that its system prompt contains."""
    tools: tuple[str, ...] | None = None
    """Names of tools that are all among those it offers."""

    _compiles = field_validator("system")(_regular)

    @model_validator(mode="after")
    def _says_something(self) -> AgentRule:
        if self.system is None and self.tools is None:
            raise ValueError("a rule needs system or tools: without a condition it would name every call")
        return self


class GatewayConfig(Settings):
    """The endpoint agents talk to."""

    host: str = "127.0.0.1"
    """The address to listen on. Agents on this machine need no other than loopback."""
    port: int = Field(default=0, ge=0, le=65535)
    """0: a free one."""
    orphan_grace: float = Field(default=30.0, ge=0)
    """Seconds a call whose connection closed goes on sampling, waiting to be reclaimed by a retry."""
    heartbeat: float = Field(default=10.0, gt=0)
    """Seconds without a byte after which a waiting client is sent one that means nothing: a space before JSON, a
    comment between events."""
    max_body_mb: float = Field(default=32.0, gt=0)
    """Requests larger than this are refused."""
    drain: float = Field(default=10.0, ge=0)
    """Seconds that open calls get at shutdown."""
    upstream_timeout: float = Field(default=300.0, gt=0)
    """Seconds that the endpoint of an external model may send nothing before a call to it fails. At most 10 of them are
    waited for a connection."""
    tool_error_reward: Score | None = None
    """A reward for a call that made a tool call whose result comes back marked as an error, once for each: by the API
    (`is_error`, a status, Gemini's `error`) or as a result of the Model Context Protocol (`isError`). Only credit that
    uses rewards of calls takes it (`algorithm.credit.scheme`). None: such results are counted, and worth nothing."""
    compact_timeout: float = Field(default=60.0, gt=0)
    """Seconds that `compact`, the function that shortens a history, may take before it is given up."""
    agents: dict[str, AgentRule] = Field(default_factory=dict[str, AgentRule])
    """Names for a program's agents, each with a rule: `planner = {system = "^You plan", tools = ["search"]}`. The first
    rule that holds names the call."""

    @field_validator("agents")
    @classmethod
    def _can_be_names(cls, value: dict[str, AgentRule]) -> dict[str, AgentRule]:
        for name in value:
            if clean_name(name) != name:
                raise ValueError(
                    f"{name!r:.60} cannot be an agent's name: one line of text without '/', at most {LONGEST_NAME} "
                    "characters"
                )
        return value


class ExternalModel(Settings):
    """A model of somebody else's that agents may call: what `resources={NAME: LLM(...)}` is in a program."""

    endpoint: str
    """Its base URL."""
    model: str
    """The name that the endpoint knows it by."""
    api_key_env: str | None = None
    """The environment variable that holds its key. None: it needs none."""
    sampling_parameters: dict[str, float | int | str] = Field(default_factory=dict[str, float | int | str])
    """What the agent is handed as `llm.sampling_parameters`."""


class StoreConfig(Settings):
    """The record."""

    url: str | None = None
    """`sqlite:///path`. None: `record.db` in the output folder."""
    durability: Literal["process", "power"] = "process"
    """`process` survives kill -9 of any process; `power` adds fsync."""


class CheckpointConfig(Settings):
    """What is kept of the weights, in Hugging Face layout."""

    save_every: int = Field(default=10, ge=0)
    """Steps between checkpoints; 0: only the last."""
    keep: int = Field(default=2, ge=1)
    """How many of the latest are kept, besides the best."""
    best: bool = True
    """Also keep the one with the best validation score."""


class RunConfig(Settings):
    """A whole run. Written to the run's folder as `config.json`, with where each value came from."""

    name: str = "run"
    """What the run is called in lists; its id is the name with the time and a random suffix. At most 100 characters, no
    slashes."""

    output_dir: Path = Path("runs")
    """A run's folder is made in here."""
    seed: int = 0
    """Fixes the order of tasks and everything that is sampled."""
    steps: int | None = Field(default=None, ge=1)
    """Training steps. None: as many as `epochs` need."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the training tasks."""
    stop_at: float | None = None
    """End the training when a step's mean training reward reaches this."""
    max_time: float | None = Field(default=None, gt=0)
    """Seconds after which the run saves and ends as if interrupted once."""
    deterministic: bool = False
    """Fixed threads, one call at a time, no shared prefixes: a resumed run equals an uninterrupted one bit for bit.
    Slow."""
    threads: int | None = Field(default=None, ge=1)
    """Threads that compute, from loading the model on. None: as many as other processes leave cores free, looked at
    again while it works; in `deterministic` mode as many as there are cores at the start, recorded."""
    layout: str = "shared"
    """Where a policy samples and learns. `shared`: in this process, on the same weights."""
    trained_agents: str | None = None
    """An agent's name, or, where no agent has that very name, a regular expression that is searched in names: only
    calls of these agents are trained, those of the others are masked as `other_agent`. None: what the agent's own code
    says, `LitAgent(trained_agents=...)`, else all."""
    quorum: float = Field(default=1.0, gt=0, le=1)
    """The share of a group that has to finish before `group_deadline` lets it go on without the rest."""
    group_deadline: float = Field(default=900.0, gt=0)
    """Seconds after which a group with its quorum goes on, and twice that for one without; the others are cancelled."""
    resources: dict[str, ExternalModel] = Field(default_factory=dict[str, ExternalModel])
    """Models of somebody else's, by the names that agents call them by: `[resources.judge]` with `endpoint`, `model`
    and `api_key_env`. One called `main_llm` is what `agl dev`, and without a model `agl eval`, hand out as `llm`."""
    model: ModelConfig = ModelConfig()
    sampling: SamplingConfig = SamplingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    engine: EngineConfig = EngineConfig()
    learner: LearnerConfig = LearnerConfig()
    runner: RunnerConfig = RunnerConfig()
    gateway: GatewayConfig = GatewayConfig()
    store: StoreConfig = StoreConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()

    _compiles = field_validator("trained_agents")(_regular)

    @property
    def record_url(self) -> str:
        """Where the record is."""
        return self.store.url or f"sqlite:///{at_home(self.output_dir).resolve() / 'record.db'}"

    def anchored(self) -> RunConfig:
        """The same settings with every path absolute: from then on the working folder, which an agent may change or
        delete, means nothing.

        Raises ConfigError where the working folder is gone already.
        """
        from agentlightning.errors import ConfigError

        def absolute(path: str | Path) -> Path:
            return at_home(path).absolute()

        try:
            config = self.model_copy(update={"output_dir": absolute(self.output_dir).resolve()})
            if (self.store.url or "").startswith(_SQLITE):
                url = f"{_SQLITE}{absolute((self.store.url or '').removeprefix(_SQLITE))}"
                config = config.model_copy(update={"store": self.store.model_copy(update={"url": url})})
            if self.model.path and absolute(self.model.path).is_dir():
                config = config.model_copy(
                    update={"model": self.model.model_copy(update={"path": str(absolute(self.model.path))})}
                )
        except FileNotFoundError as error:
            raise ConfigError(
                "the working folder no longer exists: change into one that does, or give output_dir and model as "
                "absolute paths"
            ) from error
        return config

    @field_validator("name")
    @classmethod
    def _names_a_folder(cls, name: str) -> str:
        if not 0 < len(name) <= 100 or set(name) & set("/\\\0") or not name.isprintable() or name.startswith("."):
            raise ValueError(
                f"{name[:100]!r} cannot be part of a folder's name: 1 to 100 characters, no slashes, no control "
                "characters, no dot in front"
            )
        return name
