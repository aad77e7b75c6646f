"""Loading a Hugging Face causal language model with its tokenizer, or saying in one line why it cannot be used.

Loads torch when imported, so only what samples or trains may import it. It knows nothing of engines or learners and
leaves the terminal quiet.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from agentlightning.errors import MissingExtra, ModelError, install
from agentlightning.settings.fields import ModelConfig
from agentlightning.settings.starters import STARTERS
from agentlightning.spellings.absent import why
from agentlightning.spellings.nearest import did_you_mean
from agentlightning.text import at_home

try:
    import torch
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import OfflineModeIsEnabled
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as hf_logging
except ImportError as error:
    raise MissingExtra(f"sampling and training need {error.name or 'torch'}: {install('train')}") from error

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from agentlightning.engines.local.threads import Threads

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "tekken.json",
)
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_HUB_TIMEOUT = 20.0
_BATCH_DEPENDENT_ROPE = ("dynamic", "longrope")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to sample: in evaluation mode on ``device``. ``context_length`` is in tokens; None where the model
    names no limit.

    ``stop_token_ids`` end the assistant's turn, as the generation config and the tokenizer have it.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    device: torch.device
    dtype: torch.dtype
    context_length: int | None
    stop_token_ids: tuple[int, ...]


def load_model(config: ModelConfig, threads: Threads | None = None) -> LoadedModel:
    """Loads a folder or a hub id. Raises ModelError, one line, for everything that keeps it from being sampled or
    trained."""
    if threads is not None:
        threads.adapt()
    source = _source(config.path)
    device = _device(config.device)
    dtype = _dtype(config.dtype, device)
    with _quiet():
        tokenizer = _load_tokenizer(source)
        if not cast(Any, tokenizer).chat_template:
            raise ModelError(
                f"{source} has no chat template: add chat_template.jinja to it, or take the model's instruct version"
            )
        _refuse_absent_kinds(source)
        model = _load_weights(source, dtype)
    _refuse_unembedded(source, model, tokenizer)
    try:
        model = cast("PreTrainedModel", cast(Any, model).to(device)).eval()
    except (torch.OutOfMemoryError, RuntimeError) as error:
        raise ModelError(f"{source} does not fit on {device}: {_first_line(error)}") from error
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        device=device,
        dtype=dtype,
        context_length=model_context_length(model.config),
        stop_token_ids=_stop_token_ids(model, tokenizer),
    )


def model_context_length(config: Any) -> int | None:
    """The longest sequence, in tokens, that a model with this Hugging Face config can hold; None where it names no
    limit.

    Rotary scalings that change with the longest sequence of a batch ("dynamic", "longrope") count only up to where they
    begin to: beyond it a token's logprob would depend on what else is sampled.
    """
    text = config.get_text_config()
    limit = cast("int | None", getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None))
    for rope in _rope_settings(text):
        if rope.get("rope_type") in _BATCH_DEPENDENT_ROPE:
            original = rope.get("original_max_position_embeddings") or getattr(
                text, "original_max_position_embeddings", None
            )
            limit = min(x for x in (limit, original) if x is not None) if limit or original else None
    return limit


def _rope_settings(text: Any) -> list[dict[str, Any]]:
    rope = cast("dict[str, Any]", getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {})
    return [rope, *(cast("dict[str, Any]", value) for value in rope.values() if isinstance(value, dict))]


def _source(path: str) -> str:
    """Checks a local folder as far as its file names tell; passes a hub id on."""
    if not path:
        raise ModelError("no model given: set model.path (--model) to a Hugging Face folder or hub id")
    folder = at_home(path)
    if folder.suffix == ".gguf" or (folder.is_dir() and _holds_only_gguf(folder)):
        raise ModelError(f"{path}: {why('gguf')}")
    if folder.is_file():
        hint = f": give its folder, {folder.parent}" if (folder.parent / "config.json").is_file() else ""
        raise ModelError(
            f"{path} is a file; a model is a Hugging Face folder (config.json, weights, tokenizer) or a hub id{hint}"
        )
    if "://" in path:
        raise ModelError(
            f"{path} is a URL: a model is a Hugging Face folder or a hub id (NAME/MODEL); an endpoint is a resource, "
            "LLM(endpoint=...)"
        )
    if not folder.is_dir():
        if path in STARTERS:
            raise ModelError(f"the model {path} is not on this machine yet: run `agl model {path}`, once")
        if path.startswith((".", "/", "~")) or not _HUB_ID.fullmatch(path):
            raise ModelError(f"there is no model folder {path}")
        return _hub_id(path)
    if (folder / "adapter_config.json").is_file() and not any(
        next(folder.glob(pattern), None) for pattern in _WEIGHTS[1:]
    ):
        raise ModelError(
            f"{path} is an adapter: {why('adapters')}; to train on from this one, merge it first (peft's "
            "merge_and_unload)"
        )
    if not (folder / "config.json").is_file():
        raise ModelError(f"{path} has no config.json: it is not a Hugging Face model folder{_models_within(folder)}")
    if not any(next(folder.glob(pattern), None) for pattern in _WEIGHTS):
        raise ModelError(f"{path} has no weights (*.safetensors or pytorch_model*.bin)")
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise ModelError(f"{path} has no tokenizer (tokenizer.json): save it there with tokenizer.save_pretrained")
    if pointer := next(
        (file.name for pattern in _WEIGHTS for file in folder.glob(pattern) if _is_lfs_pointer(file)), None
    ):
        raise ModelError(f"{path}: {pointer} is a pointer of Git LFS and no weights: run `git lfs pull` there")
    return str(folder)


def _models_within(folder: Path) -> str:
    """Where the models are, if a folder holds some: a run's folder has its checkpoints two levels down."""
    within = sorted(
        file.parent
        for pattern in ("*/config.json", "checkpoints/*/config.json", "snapshots/*/config.json")
        for file in folder.glob(pattern)
    )
    return f"; give one of those in it: {', '.join(str(each) for each in within[-3:])}" if within else ""


def _is_lfs_pointer(file: Path) -> bool:
    with file.open("rb") as data:
        return data.read(24) == b"version https://git-lfs."


def _holds_only_gguf(folder: Path) -> bool:
    return next(folder.glob("*.gguf"), None) is not None and not any(
        next(folder.glob(pattern), None) for pattern in _WEIGHTS
    )


def _refuse_absent_kinds(source: str) -> None:
    """Refuses models of a kind that this version does not train, by what their configuration says, before their weights
    are read."""
    try:
        config = cast(Any, AutoConfig).from_pretrained(source)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  # what is wrong with it is said where its weights are loaded
        return
    method: Any = getattr(config, "quantization_config", None)
    if method is not None:
        told: Any = cast(Any, method if isinstance(method, dict) else method.to_dict())
        name: Any = told.get("quant_method")
        raise ModelError(f"{source} is quantised ({getattr(name, 'value', name)}): {why('quantized')}")
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{source} is an encoder-decoder model ({config.model_type}): {why('encoder_decoder')}")
    sees = [part for part in ("vision_config", "audio_config") if getattr(config, part, None) is not None]
    if sees and type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelError(f"{source} is a {config.model_type} model with {' and '.join(sees)}: {why('vision')}")


def _hub_id(path: str) -> str:
    """Asks the hub once, unless the model is here already: loading would ask for each file many times before it gave
    up."""
    if isinstance(try_to_load_from_cache(path, "config.json"), str):
        return path
    try:
        HfApi().model_info(path, timeout=_HUB_TIMEOUT)
    except Exception as error:
        raise _load_error(path, "", error) from error
    return path


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ModelError(f"model.device {name!r} is none of auto, cpu, cuda, cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        absent = why(device.type)
        raise ModelError(f"model.device {name!r} is none of auto, cpu, cuda, cuda:N{f': {absent}' if absent else ''}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(
            f"model.device is {name!r} and torch {torch.__version__} finds no CUDA device: set cpu or auto"
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ModelError(
            f"model.device is {name!r} and this machine has {torch.cuda.device_count()} CUDA device(s), counted from 0"
        )
    return device


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        name = "float32" if device.type == "cpu" else "bfloat16"
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


def _load_tokenizer(source: str) -> PreTrainedTokenizerBase:
    try:
        return AutoTokenizer.from_pretrained(source)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    except MemoryError:
        raise
    except Exception as error:
        raise _load_error(source, "its tokenizer cannot be loaded", error) from error


def _load_weights(source: str, dtype: torch.dtype) -> PreTrainedModel:
    try:
        loaded = cast(Any, AutoModelForCausalLM).from_pretrained(source, dtype=dtype, output_loading_info=True)
    except MemoryError:
        raise
    except Exception as error:
        raise _load_error(source, "its weights cannot be loaded as a causal language model", error) from error
    model, info = cast("tuple[PreTrainedModel, dict[str, Any]]", loaded)
    if missing := sorted(info.get("missing_keys") or ()):
        raise ModelError(
            f"{source} lacks {len(missing)} of the model's weights ({missing[0]}, ...): it would be trained from noise"
        )
    return model


def _refuse_unembedded(source: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuses a tokenizer with tokens that the model has no embedding for: a prompt that holds one of them could not be
    computed."""
    rows = int(cast(Any, model).get_input_embeddings().weight.shape[0])
    vocabulary = cast("dict[str, int]", cast(Any, tokenizer).get_vocab())
    if beyond := sorted((number, token) for token, number in vocabulary.items() if number >= rows):
        number, token = beyond[0]
        raise ModelError(
            f"{source}: its tokenizer has {len(beyond)} of its {len(vocabulary)} tokens ({token!r} is {number}) beyond "
            f"the model's embedding of {rows} rows: call model.resize_token_embeddings({beyond[-1][0] + 1}) and save "
            "it again, or put the model's own tokenizer there"
        )


def _load_error(source: str, what: str, error: Exception) -> ModelError:
    if Path(source).is_dir():
        return ModelError(f"{source}: {what}: {_first_line(error)}")
    near = did_you_mean(source, {name: name for name in (*STARTERS, "latest")}) if "/" not in source else ""
    if isinstance(error, OfflineModeIsEnabled):
        return ModelError(
            f"there is no model folder {source}, nor is a model of that name in the Hugging Face cache (HF_HUB_OFFLINE "
            f"is set){near}"
        )
    return ModelError(
        f"{source} is neither a folder here nor reachable on the Hugging Face hub{near}: {_first_line(error)}"
    )


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def _stop_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    ids: list[int] = []
    for source in (getattr(model, "generation_config", None), tokenizer):
        found = cast("int | list[int] | None", getattr(source, "eos_token_id", None))
        ids += [] if found is None else [found] if isinstance(found, int) else found
    return tuple(dict.fromkeys(ids))


@contextmanager
def _quiet() -> Generator[None]:
    """No progress bars and no warnings of transformers on the terminal; what was set before is set again after."""
    bars, level = hf_logging.is_progress_bar_enabled(), hf_logging.get_verbosity()
    hf_logging.disable_progress_bar()
    hf_logging.set_verbosity(logging.CRITICAL)
    hub_logger = logging.getLogger("huggingface_hub")
    hub_level = hub_logger.level
    hub_logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        hf_logging.set_verbosity(level)
        hub_logger.setLevel(hub_level)
        if bars:
            hf_logging.enable_progress_bar()
