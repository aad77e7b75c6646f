"""Codec: text to token ids and back for one tokenizer, one piece of a prompt at a time. Knows nothing of messages.

A piece that follows other tokens is encoded as it would be inside the whole prompt. Only text that is not escaped can
become a control token (`escaping`), whatever the tokenizer's normaliser or vocabulary would make of the rest. No BOS is
added: the chat template writes the one it wants.
"""

from __future__ import annotations

import codecs
import re
from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Protocol

from tokenizers import AddedToken, Tokenizer, decoders

from agentlightning.errors import TemplateError
from agentlightning.templates.escaping import ESCAPE, MARK, QUOTE, Escaper, unescape

_SURROGATE = re.compile("[\ud800-\udfff]")
_BEFORE = MARK + MARK
"""The stand-in for the token before a piece, in the tokenizer that knows no control tokens."""


class Decoder(Protocol):
    """Ids to text while they arrive."""

    def feed(self, token_ids: Sequence[int]) -> str:
        """What no further id can change."""
        ...

    def finish(self) -> str: ...


class Codec:
    """Encodes and decodes. ``control`` maps the control tokens' texts to their ids, ``separator`` is the one that a
    piece is likely to follow."""

    def __init__(
        self,
        core: Tokenizer,
        control: Mapping[str, int],
        escaper: Escaper,
        *,
        separator: str | None,
        unknown: str | None,
    ) -> None:
        if core.truncation or core.padding:  # pyright: ignore[reportUnknownMemberType]
            core = Tokenizer.from_str(core.to_str())
            core.no_truncation()
            core.no_padding()
        self._core = core
        self._escaper = escaper
        self._control = control
        self._separator = separator if separator in control else next(iter(control), None)
        # A tokenizer's unknown token is special and comes from ordinary text, so it proves nothing.
        self._counted = frozenset(i for text, i in control.items() if text != unknown)
        self._unknown = unknown
        self._added = {token.content: token for token in core.get_added_tokens_decoder().values()}
        self._ordinary = _without(core, control)
        self._refused = self._counted | set(self._ordinary.encode(_BEFORE, add_special_tokens=False).ids)
        self._bytes = frozenset(i for b in range(256) if (i := core.token_to_id(f"<0x{b:02X}>")) is not None)
        self._table = _Bytes(core) if isinstance(core.decoder, decoders.ByteLevel) else None
        self._before: list[int] = []
        probe = core.encode(" a a", add_special_tokens=False).ids
        if self._separator is not None and self._decode(probe) != self._after_separator(probe):
            self._before = [control[self._separator]]
        self._before_text = self._decode(self._before)

    # ----------------------------------------------------------------- encoding
    def encode(self, text: str, *, start: bool) -> array[int]:
        """The ids of a rendered text, its escapes taken out. Raises TemplateError where the tokenizer cannot write a
        text without a control token."""
        (ids,) = self.encode_all([(text, start)])
        if isinstance(ids, TemplateError):
            raise ids
        return ids

    def encode_all(self, texts: Sequence[tuple[str, bool]]) -> list[array[int] | TemplateError]:
        """As ``encode`` of each text with its ``start``. The tokenizer runs once for all, outside the interpreter's
        lock."""
        whole: list[tuple[int, str, str]] = []
        for i, (text, start) in enumerate(texts):
            if text and ESCAPE not in text:
                text = _sound(text)
                # Behind a control token, as in the whole prompt: it may add a space or take one away.
                before = (
                    "" if start or self._separator is None or self._escaper.pattern.match(text) else self._separator
                )
                whole.append((i, before, text))
        encoded = self._core.encode_batch_fast([before + text for _, before, text in whole], add_special_tokens=False)
        found: dict[int, array[int]] = {}
        for (i, before, text), encoding in zip(whole, encoded, strict=True):
            ids = encoding.ids[1:] if before else encoding.ids
            written = sum([token != self._unknown for token in self._escaper.pattern.findall(text)])
            if written == sum([token in self._counted for token in ids]):
                found[i] = array("i", ids)
        return [found[i] if i in found else self._guarded(text, start) for i, (text, start) in enumerate(texts)]

    def _guarded(self, text: str, start: bool) -> array[int] | TemplateError:
        try:
            return self._piecewise(_sound(text), start)
        except TemplateError as error:
            return error

    def _piecewise(self, text: str, start: bool) -> array[int]:
        ids = array("i")
        position = 0
        before: str | None = None
        for found in [*self._escaper.pattern.finditer(text), None]:
            piece = text[position : found.start() if found else len(text)]
            if before is not None and self._added[before].rstrip:
                piece = piece.lstrip()
            if found and self._added[found[0]].lstrip:
                piece = piece.rstrip()
            ids.extend(self._text(piece, start and before is None))
            if found:
                before = found[0]
                position = found.end()
                ids.append(self._control[before])
        return ids

    def _text(self, piece: str, start: bool) -> list[int]:
        """The ids of a text without control tokens, in as few parts as keep them out."""
        if not piece:
            return []
        ids: list[int] = []
        for parts in ([unescape(piece)], _parts(piece), list(unescape(piece))):
            ids = self._plain(parts[0], start)
            for part in parts[1:]:
                ids += self._plain(part, False)
            if self._refused.isdisjoint(ids):
                return ids
        text = next((text for text, token in self._control.items() if token in ids), piece)
        raise TemplateError(f"a message holds {text!r}, which this tokenizer cannot write as ordinary text")

    def _plain(self, text: str, start: bool) -> list[int]:
        if start:
            return self._ordinary.encode(text, add_special_tokens=False).ids
        return self._ordinary.encode(_BEFORE + text, add_special_tokens=False).ids[1:]

    # ----------------------------------------------------------------- decoding
    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ids as it reads behind other tokens; an incomplete character is U+FFFD, an id without a text is
        nothing."""
        if self._table is not None:
            return self._table.join(token_ids).decode("utf-8", "replace")
        return self._decode([*self._before, *token_ids])[len(self._before_text) :]

    def decoder(self) -> Decoder:
        """For ids that arrive in pieces; what it gives, put together, is ``decode`` of all of them."""
        return _Whole(self) if self._table is None else _ByteDecoder(self._table)

    def decode_whole(self, token_ids: Sequence[int]) -> str | None:
        """As ``decode``; None where the next ids can still change what these read as: part of a character, or of a run
        of single bytes."""
        last = next((i for i in reversed(token_ids) if self._core.id_to_token(i) is not None), None)
        if last is None or last in self._bytes:
            return None
        text = self.decode(token_ids)
        return None if text.endswith("\ufffd") else text

    def begun(self, token_ids: Sequence[int], places: Sequence[int]) -> list[int]:
        """How many of the ids begin before each of some places in their text, which come in order."""
        if not places or not places[-1]:
            return [0] * len(places)
        if self._table is not None and "\ufffd" not in (before := self.decode(token_ids)[: places[-1]]):
            starts = [*accumulate(map(len, map(self._table.__getitem__, token_ids)), initial=0)]
            pieces = [before[a:b].encode("utf-8", "surrogatepass") for a, b in pairwise((0, *places))]
            return [min(bisect_left(starts, at), len(token_ids)) for at in accumulate(map(len, pieces))]

        def start(count: int) -> int:
            text: str | None = ""
            while count and (text := self.decode_whole(token_ids[:count])) is None:
                count -= 1  # inside a character
            return len(text or "")

        return [bisect_left(range(len(token_ids)), place, key=start) if place else 0 for place in places]

    def _decode(self, token_ids: list[int]) -> str:
        return self._core.decode(token_ids, skip_special_tokens=False)

    def _after_separator(self, token_ids: list[int]) -> str:
        assert self._separator is not None
        before = [self._control[self._separator]]
        return self._decode(before + token_ids)[len(self._decode(before)) :]


# --------------------------------------------------------------------------- byte-level vocabularies


def _byte_of() -> dict[str, int]:
    """The character that stands for each byte in a byte-level vocabulary: itself where it is printable, else one from
    U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_of()


class _Bytes(dict[int, bytes]):
    """The bytes of each id, filled in as ids are met. A token with a character that stands for no byte is its own text,
    as in the library's decoder."""

    def __init__(self, core: Tokenizer) -> None:
        super().__init__()
        self._core = core

    def __missing__(self, token: int) -> bytes:
        text = self._core.id_to_token(token) or ""
        try:
            found = bytes([_BYTE_OF[character] for character in text])
        except KeyError:
            found = text.encode()
        self[token] = found
        return found

    def join(self, token_ids: Sequence[int]) -> bytes:
        return b"".join(map(self.__getitem__, token_ids))


class _ByteDecoder:
    def __init__(self, table: _Bytes) -> None:
        self._table = table
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_ids: Sequence[int]) -> str:
        return self._decoder.decode(self._table.join(token_ids))

    def finish(self) -> str:
        return self._decoder.decode(b"", True)


class _Whole:
    """Decodes what can no longer change, and keeps the ids of the rest."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._pending: list[int] = []

    def feed(self, token_ids: Sequence[int]) -> str:
        self._pending += token_ids
        text = self._codec.decode_whole(self._pending)
        if text is None:
            return ""
        self._pending = []
        return text

    def finish(self) -> str:
        pending, self._pending = self._pending, []
        return self._codec.decode(pending) if pending else ""


# --------------------------------------------------------------------------- control tokens


def control_tokens(core: Tokenizer, template: str) -> dict[str, int]:
    """The texts that only the template may write as tokens: special ones, other added ones that it mentions, and all
    named like ``<|x|>``.

    Added tokens that are ordinary text to the model (runs of spaces, HTML tags) are not among them.
    """
    return {
        token.content: i
        for i, token in core.get_added_tokens_decoder().items()
        if len(token.content) > 1
        and not token.content.isspace()
        and (token.special or token.content in template or _NAMED.fullmatch(token.content))
    }


_NAMED = re.compile(r"<[|｜].*[|｜]>")


def _sound(text: str) -> str:
    """The text with nothing in it that has no UTF-8 form."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text)
    return text


def _parts(piece: str) -> list[str]:
    """The text cut where an escape breaks a control token, so that none of its text stays together."""
    parts: list[str] = []
    whole: list[str] = []
    for found in _PIECES.finditer(piece):
        if found[0] != ESCAPE:
            whole.append(unescape(found[0]))
        elif whole:
            parts.append("".join(whole))
            whole = []
    return [*parts, "".join(whole)] if whole or not parts else parts


_PIECES = re.compile(f"{ESCAPE}[{ESCAPE}{QUOTE}]|[^{ESCAPE}]+|{ESCAPE}")


def _without(core: Tokenizer, control: Mapping[str, int]) -> Tokenizer:
    """The same tokenizer (its model is shared, not copied) that knows no control tokens but ``_BEFORE``."""
    ordinary = Tokenizer(core.model)
    if core.normalizer is not None:
        ordinary.normalizer = core.normalizer
    if core.pre_tokenizer is not None:
        ordinary.pre_tokenizer = core.pre_tokenizer
    # Other added tokens stay, where the model knows them by the same id.
    kept = [
        token
        for i, token in sorted(core.get_added_tokens_decoder().items())
        if token.content not in control and core.model.token_to_id(token.content) == i
    ]
    ordinary.add_tokens(kept)  # pyright: ignore[reportUnknownMemberType]
    ordinary.add_special_tokens([AddedToken(_BEFORE, special=True, normalized=False)])  # pyright: ignore[reportUnknownMemberType]
    return ordinary
