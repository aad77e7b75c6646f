"""Grammar: which ids may come next in a sample that has to follow a grammar. The only place that knows the library that
computes it.

A grammar's text is Lark with the library's extensions: ``%json {...}`` for a JSON schema, ``<[7]>`` for the token with
id 7. It holds all there is to know, so one text gives the same ids wherever it is compiled over the same tokenizer:
while sampling, and again while learning from the record. Imports no torch.
"""

from __future__ import annotations

import re
import threading
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from agentlightning.errors import GrammarError, install

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

Words = np.ndarray[Any, np.dtype[np.int32]]
"""A set of ids: bit i % 32 of word i // 32 says whether id i is in it."""

_MISSING = f"samples under a grammar need llguidance: {install('train')}"
_COMPILED = 64
"""Grammars that are kept compiled: an agent asks with the same tools and schemas again and again."""
_LONGEST_ERROR = 400
_PLACE = re.compile(r"^at \d+\(\d+\): ")
_LISTING = re.compile(r"\s*(?:\d+ \||\^+$)")


class Matcher:
    """One sample on its way through a grammar. Belongs to one thread at a time."""

    def __init__(self, inner: LLMatcher, library: LLTokenizer, stop_token_ids: Sequence[int], words: int) -> None:
        self._inner = inner
        self._words = words
        self.end_id = stop_token_ids[0] if stop_token_ids else library.eos_token
        """The id that ends the sample where the grammar lets it end."""
        # A stop token that is ordinary text would end the sample anywhere; a control token comes only where the grammar
        # names it.
        self._never = (library.eos_token, *(i for i in stop_token_ids if not library.is_special_token(i)))

    def allowed(self) -> Words:
        """The ids that may come next: [words]. Raises GrammarError where the library gives up or nothing may."""
        words = np.frombuffer(self._inner.compute_bitmask(), dtype=np.uint32)[: self._words].copy()
        self._check()
        for token_id in self._never:
            words[token_id >> 5] &= ~np.uint32(1 << (token_id & 31))
        if self._inner.is_accepting():
            words[self.end_id >> 5] |= np.uint32(1 << (self.end_id & 31))
        if not words.any():
            raise GrammarError("the grammar has come to a place where no token of this model's vocabulary may follow")
        return words.view(np.int32)

    def accept(self, token_id: int) -> None:
        """Goes on behind a token that is not the end. Raises GrammarError where it may not come next."""
        if not self._inner.consume_token(token_id):
            self._check()
            raise GrammarError(f"the grammar does not allow the token {token_id} here")

    def _check(self) -> None:
        if self._inner.is_error():
            raise GrammarError(_one_line(self._inner.get_error()))


class Grammars:
    """Compiles grammars for one tokenizer and a model of ``vocabulary`` ids. Safe to use from several threads; the
    first use takes up to a second."""

    def __init__(self, tokenizer: Any, vocabulary: int) -> None:
        """``tokenizer``: a Hugging Face fast tokenizer."""
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._lock, self._loading = threading.Lock(), threading.Lock()
        self._library: LLTokenizer | GrammarError | None = None
        self._compiled: OrderedDict[str, LLMatcher | GrammarError] = OrderedDict()

    @property
    def words(self) -> int:
        """Words in a set of ids."""
        return (self._vocabulary + 31) // 32

    def matcher(self, text: str, stop_token_ids: Sequence[int]) -> Matcher:
        """A matcher at the beginning of a sample. Blocks while a new grammar is compiled. Raises GrammarError by
        name."""
        inner = self._known(text).deep_copy()
        return Matcher(inner, self._load(), stop_token_ids, self.words)

    def check(self, text: str) -> None:
        """Raises GrammarError where samples cannot be kept to the grammar. Blocks while a new one is compiled."""
        self._known(text)

    def knows(self, text: str) -> bool:
        """Whether the grammar is compiled already, so that nothing about it blocks."""
        return text in self._compiled

    def _known(self, text: str) -> LLMatcher:
        with self._lock:
            found = self._compiled.get(text)
            if found is not None:
                self._compiled.move_to_end(text)
        if found is None:
            found = _compiled(text, self._load())
            with self._lock:
                self._compiled[text] = found
                if len(self._compiled) > _COMPILED:
                    self._compiled.popitem(last=False)
        if isinstance(found, GrammarError):
            raise GrammarError(str(found))
        return found

    def _load(self) -> LLTokenizer:
        with self._loading:
            if self._library is None:
                self._library = _library(self._tokenizer, self._vocabulary)
        if isinstance(self._library, GrammarError):
            raise GrammarError(str(self._library))
        return self._library


def as_lark(text: str) -> str:
    """A grammar in Lark, or in llama.cpp's GBNF, as Lark. Raises GrammarError."""
    if "::=" not in text:
        return text
    try:
        from llguidance.gbnf_to_lark import any_to_lark
    except ImportError as error:
        raise GrammarError(_MISSING) from error
    try:
        return any_to_lark(text)
    except Exception as error:  # its reader has a class of its own for what it cannot read, and trips over the rest
        raise GrammarError(f"it is no GBNF: {_one_line(str(error))}") from error


def replay(matcher: Matcher, before: array[int], token_ids: array[int]) -> Words:
    """The ids that were allowed at each of ``token_ids``, [T, words], in a sample that began with ``before``. Raises
    GrammarError where one of them was not: the sample was drawn under another grammar or tokenizer.
    """
    for token_id in before:
        matcher.accept(token_id)
    words_TW = np.empty((len(token_ids), matcher.allowed().shape[0]), dtype=np.int32)
    for t, token_id in enumerate(token_ids):
        words_TW[t] = matcher.allowed()
        if not int(words_TW[t, token_id >> 5]) >> (token_id & 31) & 1:
            raise GrammarError(f"the grammar does not allow the token {token_id}, which was sampled under it")
        if token_id != matcher.end_id:
            matcher.accept(token_id)
    return words_TW


def _compiled(text: str, library: LLTokenizer) -> LLMatcher | GrammarError:
    from llguidance import LLMatcher

    matcher = LLMatcher(library, text, log_level=0)
    first = matcher.deep_copy()
    if not matcher.is_error():
        first.compute_bitmask()  # some grammars are found to be none only when they are first used
    return GrammarError(_one_line(first.get_error())) if first.is_error() else matcher


def _library(tokenizer: Any, vocabulary: int) -> LLTokenizer | GrammarError:
    try:
        from llguidance import LLTokenizer
    except ImportError:
        return GrammarError(_MISSING)
    core = getattr(tokenizer, "backend_tokenizer", None)
    if core is None:
        return GrammarError(
            f"{type(tokenizer).__name__} is not a fast tokenizer: the model folder needs a tokenizer.json"
        )
    size = cast("int", core.get_vocab_size(with_added_tokens=True))
    try:
        # A model's vocabulary may be padded beyond its tokenizer's, or (with ids that are never used) end before it.
        return LLTokenizer(
            core.to_str(), n_vocab=max(vocabulary, size), eos_token=cast("int | None", tokenizer.eos_token_id)
        )
    except ValueError as error:
        kind = type(core.decoder).__name__
        return GrammarError(
            "samples of this model cannot be kept to a grammar: llguidance reads byte-level and byte-fallback "
            f"tokenizers, and this one decodes by {kind} ({_one_line(str(error)).partition(':')[0]}); use free text "
            "with this model"
        )


def _one_line(text: str) -> str:
    """The library's message without places in and lines of the grammar's text, which its user has not written."""
    line = (
        _PLACE.sub("", " ".join(" ".join(line for line in text.splitlines() if not _LISTING.match(line)).split()))
        or "it gives no reason"
    )
    return line if len(line) <= _LONGEST_ERROR else line[: _LONGEST_ERROR - 3] + "..."
