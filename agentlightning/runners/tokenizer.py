"""The tokenizer of a run's model as agents are handed it: text to tokens and back, and messages through the model's
chat template. It is made of the model's files alone, so that agents load neither torch nor transformers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from agentlightning.errors import ConfigError, MissingExtra
from agentlightning.nouns import Json
from agentlightning.text import at_home

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from agentlightning.templates.renderer import Renderer

_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json")
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class AgentTokenizer:
    """Has of transformers' tokenizers what agents ask for. Tokens are plain lists of numbers."""

    def __init__(self, name: str, core: Tokenizer, special: dict[str, str], renderer: Renderer | None) -> None:
        self.name_or_path = name
        self.special_tokens_map = special
        self._core = core
        self._renderer = renderer

    def __len__(self) -> int:
        return self._core.get_vocab_size()

    def __getattr__(self, name: str) -> Any:
        special = self.__dict__.get("special_tokens_map", {})
        if name in _SPECIAL:
            return special.get(name)
        if name.removesuffix("_id") in _SPECIAL:
            token = special.get(name.removesuffix("_id"))
            return None if token is None else self._core.token_to_id(token)
        raise AttributeError(
            f"the tokenizer that an agent is handed has no {name}: it has encode, decode, tokenize, "
            "apply_chat_template, convert_tokens_to_ids, convert_ids_to_tokens, vocab_size and the special tokens; for "
            "all of transformers' use AutoTokenizer.from_pretrained(tokenizer.name_or_path)",
            name=name,
            obj=self,
        )

    @property
    def vocab_size(self) -> int:
        return self._core.get_vocab_size(with_added_tokens=False)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return self._core.encode(text, add_special_tokens=add_special_tokens).ids

    def __call__(self, text: str | Sequence[str], *, add_special_tokens: bool = True) -> dict[str, Any]:
        """``input_ids`` and ``attention_mask``, of one text or of several."""
        ids: Any = (
            self.encode(text, add_special_tokens=add_special_tokens)
            if isinstance(text, str)
            else [self.encode(each, add_special_tokens=add_special_tokens) for each in text]
        )
        mask: Any = [1] * len(ids) if isinstance(text, str) else [[1] * len(each) for each in ids]
        return {"input_ids": ids, "attention_mask": mask}

    def decode(self, token_ids: int | Sequence[int], *, skip_special_tokens: bool = False) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        return self._core.decode(ids, skip_special_tokens=skip_special_tokens)

    def batch_decode(self, sequences: Sequence[Sequence[int]], *, skip_special_tokens: bool = False) -> list[str]:
        return [self.decode(each, skip_special_tokens=skip_special_tokens) for each in sequences]

    def tokenize(self, text: str) -> list[str]:
        return self._core.encode(text, add_special_tokens=False).tokens

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        found = [self._core.token_to_id(each) for each in ([tokens] if isinstance(tokens, str) else tokens)]
        return found[0] if isinstance(tokens, str) else found

    def convert_ids_to_tokens(self, ids: int | Sequence[int]) -> Any:
        found = [self._core.id_to_token(each) for each in ([ids] if isinstance(ids, int) else ids)]
        return found[0] if isinstance(ids, int) else found

    def apply_chat_template(
        self,
        conversation: Sequence[Json],
        *,
        tools: Sequence[Json] | None = None,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        **kwargs: Json,
    ) -> Any:
        """The conversation in the model's own form, as tokens or, without ``tokenize``, as text. Raises ConfigError for
        a model without a chat template, TemplateError where that refuses the conversation."""
        if self._renderer is None:
            raise ConfigError(f"{self.name_or_path} has no chat template")
        text = self._renderer.handed(kwargs)(conversation, tools, add_generation_prompt)
        return self.encode(text, add_special_tokens=False) if tokenize else text


@lru_cache(maxsize=4)
def load_tokenizer(model: str) -> AgentTokenizer:
    """Of a model's folder or hub id. Raises ConfigError where there is none, MissingExtra without `tokenizers`."""
    try:
        from tokenizers import Tokenizer

        from agentlightning.templates.renderer import Renderer
    except ImportError as error:
        raise MissingExtra(f"an agent that takes tokenizer needs the package {error.name}") from error
    folder = _folder(model)
    if not (folder / "tokenizer.json").is_file():
        raise ConfigError(f"the agent takes tokenizer, and there is no tokenizer.json in {folder}")
    core = Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = _json(folder / "tokenizer_config.json")
    special = {name: text for name in _SPECIAL if (text := _text(config.get(name)))}
    sources = _templates(folder, config)
    renderer = Renderer.of({"tool_use": sources["default"], **sources}, special) if "default" in sources else None
    return AgentTokenizer(model, core, special, renderer)


def _folder(model: str) -> Path:
    folder = at_home(model)
    if folder.is_dir():
        return folder
    try:
        hub: Any = import_module("huggingface_hub")
        return Path(hub.snapshot_download(model, allow_patterns=list(_FILES)))
    except Exception as error:  # no folder, no such id, no network, no huggingface_hub
        raise ConfigError(f"the tokenizer of {model!r} cannot be read: {type(error).__name__}: {error}") from error


def _templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    if (file := folder / "chat_template.jinja").is_file():
        return {"default": file.read_text(encoding="utf-8")}
    given: Any = _json(folder / "chat_template.json").get("chat_template") or config.get("chat_template")
    if isinstance(given, str):
        return {"default": given}
    return {str(each["name"]): str(each["template"]) for each in cast("list[dict[str, Any]]", given or [])}


def _text(token: Any) -> str:
    return str(cast("dict[str, Any]", token).get("content", "")) if isinstance(token, dict) else str(token or "")


def _json(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
