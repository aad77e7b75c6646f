"""LocalEngine: sampling in this process, with the very weights that the learner trains.

One compute thread owns the model. Requests reach it from any event loop through a mailbox, and whatever else needs the
model (a training step, a checkpoint) runs on that thread between requests. Weights may change in `LocalEngine.update`
alone, which forgets everything they computed.
"""

from __future__ import annotations

import asyncio
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch

from agentlightning.engines.base import OnTokens, Sample, SampleRequest
from agentlightning.engines.grammar import Grammars, Matcher
from agentlightning.engines.local.forward import SlotForward
from agentlightning.engines.local.scheduler import Job, Load, Scheduler
from agentlightning.engines.local.threads import Threads
from agentlightning.engines.models import model_context_length
from agentlightning.errors import AgentLightningError, ConfigError, ContextLengthError, EngineError, GrammarError
from agentlightning.settings.fields import EngineConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

T = TypeVar("T")
_Callback = tuple[Callable[..., None], tuple[Any, ...]]

_CPU_BUDGET_GB = 2.0
_CUDA_BUDGET_SHARE = 0.4
_PREFILL_TOKENS = {"cpu": 512, "cuda": 8192}
"""Of one forward over prompts: as many as keep the device busy, and no more, since other requests' next token waits for
it."""


@dataclass(slots=True, eq=False)
class _Work:
    """Work for the compute thread that is no sampling."""

    work: Callable[[], Any]
    changes_weights: bool
    release_memory: bool
    new_version: int | None
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]


@dataclass(slots=True, eq=False)
class _Callbacks:
    """What the compute thread has to say to the event loops of those who asked, sent once a step."""

    callbacks: dict[asyncio.AbstractEventLoop, list[_Callback]] = field(
        default_factory=lambda: cast("dict[Any, list[_Callback]]", {})
    )

    def add(self, loop: asyncio.AbstractEventLoop, read: Callable[..., None], *args: Any) -> None:
        self.callbacks.setdefault(loop, []).append((read, args))

    def send(self) -> None:
        callbacks, self.callbacks = self.callbacks, {}
        for loop, of_loop in callbacks.items():
            try:
                loop.call_soon_threadsafe(_read_all, of_loop)
            except RuntimeError:
                continue  # the loop is closed: nobody is left to tell


def _read_all(callbacks: list[_Callback]) -> None:
    for read, args in callbacks:
        read(*args)


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


class _Pending:
    """The sink of one ``sample`` call: carries tokens and the outcome to the loop that awaits it."""

    def __init__(self, callbacks: _Callbacks, future: asyncio.Future[Sample], on_tokens: OnTokens | None) -> None:
        self._callbacks = callbacks
        self._future = future
        self._loop = future.get_loop()
        self._on_tokens = on_tokens

    def tokens(self, ids: array[int]) -> None:
        if self._on_tokens is not None:
            self._callbacks.add(self._loop, self._show, ids)

    def done(self, sample: Sample) -> None:
        self._callbacks.add(self._loop, _settle, self._future, sample, None)

    def failed(self, error: EngineError) -> None:
        self._callbacks.add(self._loop, _settle, self._future, None, error)

    def _show(self, ids: array[int]) -> None:
        if self._on_tokens is None or self._future.done():
            return
        try:
            self._on_tokens(ids)
        except Exception as error:  # noqa: BLE001 - the caller's own callback: its error belongs to the caller's await
            _settle(self._future, None, error)


class LocalEngine:
    """An `Engine` over a transformers model in this process. ``start`` it, and ``close`` it.

    Samples do not depend on what else is sampled: with a seed, the same request gives the same tokens in any company
    (up to the last bits of float arithmetic). ``deterministic`` makes that exact: one request at a time, no shared
    prefixes, fixed shapes.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        config: EngineConfig | None = None,
        *,
        policy: str = "main",
        context_length: int | None = None,
        deterministic: bool = False,
        version: int = 0,
        threads: Threads | None = None,
    ) -> None:
        """``context_length``: a limit on top of the model's and the config's. ``version``: of the weights as they are
        now. ``threads``: how many compute; by default what is free, or all there may be where it is
        ``deterministic``."""
        self._model = model
        self._tokenizer = tokenizer
        self._config = config or EngineConfig()
        self._policy = policy
        self._asked_context = context_length
        self._deterministic = deterministic
        self._first_version = version
        self._threads = threads or (Threads.unchanging() if deterministic else Threads())
        self._context: int | None = None
        self._vocabulary = 0
        self._grammars: Grammars | None = None
        self._scheduler: Scheduler | None = None
        self._thread: threading.Thread | None = None
        self._wake = threading.Condition()
        self._jobs: deque[Job] = deque()
        self._exclusive: deque[_Work] = deque()
        self._callbacks = _Callbacks()
        self._closing = False
        self._over: str | None = None
        """Why nothing can be sampled any more."""

    # ------------------------------------------------------------------ the Engine protocol

    @property
    def context_length(self) -> int:
        """Tokens a prompt and its sample may hold together. Known once started."""
        if self._context is None:
            raise EngineError(self._over or "the engine has not been started: await engine.start()")
        return self._context

    def version(self, policy: str = "main") -> int:
        """The version that a request admitted now would be sampled from. Raises EngineError for another policy's
        name."""
        self._check_policy(policy)
        return self._scheduler.version if self._scheduler else self._first_version

    async def start(self) -> None:
        """Checks that the model can be sampled in slots and takes its memory. Raises ModelError or ConfigError by
        name."""
        if self._thread is not None:
            raise EngineError("the engine was started before")
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        self._thread = threading.Thread(
            target=self._main, args=(loop, ready), name=f"engine-{self._policy}", daemon=True
        )
        self._thread.start()
        await ready

    async def sample(self, request: SampleRequest, on_tokens: OnTokens | None = None) -> Sample:
        """Draws one sample. See `Engine`. Cancelling frees the request's row at the next step."""
        self._check(request)
        submitted = time.monotonic()
        matcher = None if request.params.grammar is None else await self._matcher(request, request.params.grammar)
        future: asyncio.Future[Sample] = asyncio.get_running_loop().create_future()
        job = Job(request, _Pending(self._callbacks, future, on_tokens), submitted, matcher)
        with self._wake:
            self._check_open()
            self._jobs.append(job)
            self._wake.notify()
        try:
            return await future
        finally:
            job.withdrawn = True

    async def check_grammar(self, grammar: str) -> None:
        """See `ConstrainedEngine`."""
        await self._compiled(grammar)

    async def close(self) -> None:
        """Fails what is live or waiting, by name, and ends the compute thread. Errands that wait are refused, a running
        one ends first."""
        with self._wake:
            self._closing = True
            self._over = self._over or "the engine was closed"
            self._wake.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    # ------------------------------------------------------------------ the model, for others than requests

    async def update(self, work: Callable[[], T], *, release_memory: bool = False) -> T:
        """Runs ``work``, which may change weights, on the compute thread while nothing is sampled; the version then
        grows by one.

        Live requests end first, waiting ones are sampled from the new version, and every kept prefix is forgotten, also
        where ``work`` raises: it may have changed half of the weights. ``release_memory`` gives the rows' memory to
        ``work``.
        """
        return cast(T, await self._run(work, changes_weights=True, release_memory=release_memory))

    async def run_exclusive(self, work: Callable[[], T], *, release_memory: bool = False) -> T:
        """Runs ``work``, which leaves the weights alone, on the compute thread while nothing is sampled.

        Raises EngineError if ``work`` did change weights (by then the version has grown and every prefix is forgotten):
        use ``update``. ``release_memory`` gives all memory for keys and values, kept prefixes too, to ``work``.
        """
        return cast(T, await self._run(work, changes_weights=False, release_memory=release_memory))

    async def set_version(self, version: int, work: Callable[[], object] = lambda: None) -> None:
        """Runs ``work``, which loads weights from a checkpoint, say, and names them ``version``. Every kept prefix is
        forgotten. A version only grows."""
        if version < self.version(self._policy):
            raise EngineError(
                f"policy {self._policy!r} is at version {self.version(self._policy)}, which cannot become {version}: "
                "versions only grow"
            )
        await self._run(work, changes_weights=True, new_version=version)

    @property
    def load(self) -> Load:
        """What is in hand right now, seen from outside the compute thread: of use for a display."""
        return self._scheduler.load if self._scheduler else Load(0, 0, 0, 0)

    # ------------------------------------------------------------------ callers' side

    def _check_policy(self, policy: str) -> None:
        if policy != self._policy:
            raise EngineError(f"this engine samples the policy {self._policy!r}, not {policy!r}")

    def _check_open(self) -> None:
        if self._over is not None:
            raise EngineError(self._over)

    def _check(self, request: SampleRequest) -> None:
        self._check_policy(request.policy)
        prompt, params = request.prompt_ids, request.params
        if len(prompt) == 0:
            raise EngineError(f"request {request.id!r} has an empty prompt")
        if len(prompt) >= self.context_length:
            raise ContextLengthError(len(prompt), self.context_length)
        if min(prompt) < 0 or max(prompt) >= self._vocabulary:
            raise EngineError(
                f"request {request.id!r}: the prompt holds ids outside the model's vocabulary of {self._vocabulary}"
            )
        if params.max_tokens < 1:
            raise EngineError(
                f"request {request.id!r}: max_tokens is {params.max_tokens}, and a sample has at least one token"
            )
        if not (params.temperature >= 0 and 0 < params.top_p <= 1 and params.top_k >= 0):
            raise EngineError(
                f"request {request.id!r}: temperature {params.temperature}, top_p {params.top_p}, top_k {params.top_k} "
                "are not all in their ranges"
            )

    async def _compiled(self, grammar: str) -> Grammars:
        _ = self.context_length  # refuses an engine that was not started
        assert self._grammars is not None
        if not self._grammars.knows(grammar):  # it takes milliseconds, the first one up to a second
            await asyncio.to_thread(self._grammars.check, grammar)
        self._grammars.check(grammar)
        return self._grammars

    async def _matcher(self, request: SampleRequest, grammar: str) -> Matcher:
        try:
            return (await self._compiled(grammar)).matcher(grammar, request.params.stop_token_ids)
        except GrammarError as error:
            raise EngineError(f"request {request.id!r}: {error}") from error

    async def _run(
        self,
        work: Callable[[], Any],
        *,
        changes_weights: bool,
        release_memory: bool = False,
        new_version: int | None = None,
    ) -> Any:
        _ = self.context_length  # refuses an engine that was not started
        loop = asyncio.get_running_loop()
        work_item = _Work(work, changes_weights, release_memory, new_version, loop, loop.create_future())
        with self._wake:
            self._check_open()
            self._exclusive.append(work_item)
            self._wake.notify()
        return await work_item.future

    # ------------------------------------------------------------------ compute thread

    def _main(self, loop: asyncio.AbstractEventLoop, ready: asyncio.Future[None]) -> None:
        try:
            if next(self._model.parameters()).device.type == "cpu":
                self._threads.enlist()
            self._threads.adapt()
            self._scheduler = self._open()
        except Exception as error:  # noqa: BLE001 - whoever awaits start gets it
            self._over = f"the engine did not start: {error}"
            reason = (
                error
                if isinstance(error, AgentLightningError)
                else EngineError(f"{self._over} ({type(error).__name__})")
            )
            self._callbacks.add(loop, _settle, ready, None, reason)
            self._callbacks.send()
            return
        self._callbacks.add(loop, _settle, ready, None, None)
        self._callbacks.send()
        try:
            self._serve(self._scheduler)
        except BaseException as error:  # noqa: BLE001 - a fault of this engine: it ends, and nobody waits for it
            with self._wake:
                self._over = f"the engine died: {type(error).__name__}: {error}"
        with self._wake:
            message = self._over or "the engine was closed"
            self._scheduler.waiting.extend(self._jobs)
            works, self._exclusive = self._exclusive, deque()
        self._scheduler.fail_all(message)
        for work_item in works:
            self._answer(work_item, None, EngineError(message))
        self._callbacks.send()

    def _open(self) -> Scheduler:
        device = next(self._model.parameters()).device
        if device.type == "cuda":
            torch.cuda.set_device(device)
        forward = SlotForward(self._model, graphs=not self._deterministic)
        forward.check()
        context, budget_tokens = self._limits(forward)
        self._context, self._vocabulary = context, forward.vocabulary
        self._grammars = Grammars(self._tokenizer, forward.vocabulary)
        decode = cast(Any, self._tokenizer).decode
        return Scheduler(
            forward,
            lambda ids: cast(str, decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)),
            slots=1 if self._deterministic else self._config.slots,
            budget_tokens=budget_tokens,
            context_length=context,
            prefill_tokens=_PREFILL_TOKENS[device.type],
            roomy=device.type == "cuda",
            prefix_cache=self._config.prefix_cache and not self._deterministic,
            fixed_shapes=self._deterministic,
            version=self._first_version,
        )

    def _limits(self, forward: SlotForward) -> tuple[int, int]:
        """(context length, KV budget), both in tokens."""
        gigabytes = self._config.kv_budget_gb
        if gigabytes is not None:
            budget = int(gigabytes * 1e9)
        elif forward.device.type == "cuda":
            budget = int(torch.cuda.mem_get_info(forward.device)[0] * _CUDA_BUDGET_SHARE)
        else:
            budget = int(_CPU_BUDGET_GB * 1e9)
        held = budget // forward.cache.token_bytes
        limit = model_context_length(self._model.config)
        asked = self._config.context_length
        if asked is not None and limit is not None and asked > limit:
            raise ConfigError(f"engine.context_length is {asked} and the model holds {limit} tokens: set at most that")
        if asked is not None and asked > held:
            raise ConfigError(
                f"engine.context_length is {asked} and engine.kv_budget_gb = {budget / 1e9:g} holds {held} tokens"
                f" ({forward.cache.token_bytes} bytes each): raise the budget or shorten the context"
            )
        context = min(held, *(n for n in (limit, asked, self._asked_context) if n is not None), held)
        if context < 2:
            raise ConfigError(
                f"engine.kv_budget_gb = {budget / 1e9:g} holds {held} tokens ({forward.cache.token_bytes} bytes each): "
                "raise it"
            )
        return context, held

    def _serve(self, scheduler: Scheduler) -> None:
        while True:
            with self._wake:
                while not (self._jobs or self._exclusive or self._closing or scheduler.live or scheduler.waiting):
                    self._wake.wait()
                if self._closing:
                    return
                scheduler.waiting.extend(self._jobs)
                self._jobs.clear()
                work_item = self._exclusive.popleft() if self._exclusive and not scheduler.live else None
                held = bool(self._exclusive)
            self._threads.adapt()
            if work_item is not None:
                self._do(work_item, scheduler)
            else:
                scheduler.step(admit=not held)
            self._callbacks.send()

    def _do(self, work_item: _Work, scheduler: Scheduler) -> None:
        if work_item.future.cancelled():
            return
        if work_item.release_memory:
            scheduler.free()
        result, failure = None, cast("BaseException | None", None)
        try:
            result = work_item.work()
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever asked for the work
            failure = error
        changed = scheduler.renew()
        if changed or work_item.changes_weights:
            scheduler.invalidate(scheduler.version + 1 if work_item.new_version is None else work_item.new_version)
        if changed and not work_item.changes_weights and failure is None:
            failure = EngineError("the work given to run_exclusive changed weights: give it to LocalEngine.update")
        self._answer(work_item, result, failure)

    def _answer(self, work_item: _Work, result: Any, failure: BaseException | None) -> None:
        self._callbacks.add(work_item.loop, _settle, work_item.future, result, failure)
