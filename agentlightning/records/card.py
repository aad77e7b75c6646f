"""Card: how a result shows itself in a notebook, as a short HTML block. Every text is escaped; a picture is embedded,
so that the notebook holds it. Pure."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from html import escape

from agentlightning.text import printable


def card(title: str, rows: Iterable[tuple[str, str]], *, picture: bytes | None = None) -> str:
    """A title, rows of a label and a text, and a PNG below."""
    cells = "".join(
        f'<tr><th style="text-align:left;vertical-align:top">{_text(label)}</th><td '
        f'style="text-align:left;white-space:pre-wrap">{_text(text)}</td></tr>'
        for label, text in rows
    )
    image = (
        f'<img alt="learning curve" style="max-width:640px" src="data:image/png;base64,{b64encode(picture).decode()}">'
        if picture
        else ""
    )
    return f"<div><strong>{_text(title)}</strong><table>{cells}</table>{image}</div>"


def _text(text: str) -> str:
    return escape(printable(text))
