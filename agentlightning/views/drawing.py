"""A picture: shapes in their order, written as SVG by hand or as PNG through matplotlib. Knows nothing of what it
shows; loads matplotlib only for a PNG."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from agentlightning.errors import ConfigError, why_no_folder
from agentlightning.text import printable
from agentlightning.views.fonts import drawn, fonts_for, needs_matplotlib, spell

logger = logging.getLogger("agentlightning")

INK, FONT, SMALL = "#1f2328", 11.0, 10.0
CELL = 0.602
"""Width of a character of a monospaced font, in font sizes."""

MOST_PIXELS, MOST_SIDE = 40e6, 30_000
"""Of a PNG; a larger picture is drawn smaller. An SVG has no such limit."""


@dataclass(frozen=True, slots=True)
class Area:
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Rect:
    area: Area
    fill: str
    border: str | None = None
    border_width: float = 1.0
    dashed: bool = False
    radius: float = 0.0
    hover: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    points: tuple[tuple[float, float], ...]
    colour: str


@dataclass(frozen=True, slots=True)
class Words:
    """One line of text. ``x`` is its beginning (or end, middle), ``y`` its baseline."""

    x: float
    y: float
    text: str
    size: float = FONT
    colour: str = INK
    bold: bool = False
    anchor: str = "start"


Shape = Rect | Line | Words


@dataclass(frozen=True, slots=True)
class Picture:
    """Shapes in the order they are drawn, in pixels from the upper left corner. ``again`` draws the same with each text
    written as it is told, so that what is longer then has its room."""

    width: float
    height: float
    shapes: Sequence[Shape]
    title: str
    again: Callable[[Callable[[str], str]], Picture] | None = None

    @property
    def texts(self) -> list[str]:
        return [shape.text for shape in self.shapes if isinstance(shape, Words)]


# --------------------------------------------------------------------------- files


def to_svg(picture: Picture) -> str:
    """An SVG document that browsers open as it is. What a shape has in ``hover`` appears when the pointer rests on
    it."""
    width, height = f"{picture.width:.0f}", f"{picture.height:.0f}"
    parts = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        ' font-family="DejaVu Sans Mono, Menlo, Consolas, Liberation Mono, monospace">',
        f"<title>{_xml(picture.title)}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for shape in picture.shapes:
        match shape:
            case Rect(area):
                border = f' stroke="{shape.border}" stroke-width="{shape.border_width:g}"' if shape.border else ""
                dashes = ' stroke-dasharray="5 3"' if shape.dashed else ""
                tag = (
                    f'rect x="{area.x:.1f}" y="{area.y:.1f}" width="{area.width:.1f}" height="{area.height:.1f}" '
                    f'rx="{shape.radius:g}" fill="{shape.fill}"{border}{dashes}'
                )
                parts.append(f"<{tag}><title>{_xml(shape.hover)}</title></rect>" if shape.hover else f"<{tag}/>")
            case Line(points):
                corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
                parts.append(
                    f'<polyline points="{corners}" fill="none" stroke="{shape.colour}" stroke-width="1.2" '
                    'stroke-linejoin="round"/>'
                )
            case Words():
                weight = ' font-weight="bold"' if shape.bold else ""
                anchor = f' text-anchor="{shape.anchor}"' if shape.anchor != "start" else ""
                parts.append(
                    f'<text x="{shape.x:.1f}" y="{shape.y:.1f}" font-size="{shape.size:g}" '
                    f'fill="{shape.colour}"{weight}{anchor}'
                    f' xml:space="preserve" pointer-events="none">{_xml(shape.text)}</text>'
                )
    return "\n".join([*parts, "</svg>", ""])


def _xml(text: str) -> str:
    """Text that is safe between tags. What XML cannot hold, such as control characters, is not printable either."""
    return escape(printable(text))


def to_png(picture: Picture) -> bytes:
    """The same picture as a PNG, two pixels for one where it is not too large. Raises MissingExtra without matplotlib.

    Characters that no installed font has are written as ``U+4F60``, and a warning says so.
    """
    with needs_matplotlib("a PNG", " (an SVG needs nothing: name the file .svg)"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.lines import Line2D
        from matplotlib.patches import FancyBboxPatch
    fonts = fonts_for(picture.texts)
    if fonts.missing:
        picture = _spelled(picture, fonts.missing)
        logger.warning(
            "the PNG has characters written by number (%s) that no font here has: install one that does, such as "
            "Noto Sans CJK or Noto Emoji, or look at the picture as an SVG",
            spell("".join(sorted(fonts.missing)[:3]), fonts.missing) + (", ..." if len(fonts.missing) > 3 else ""),
        )
    width, height = picture.width, picture.height
    scale = min(2.0, MOST_SIDE / width, MOST_SIDE / height, sqrt(MOST_PIXELS / (width * height)))
    # no pyplot: it keeps global state and wants a display
    figure: Any = Figure(figsize=(width / 72, height / 72), dpi=72 * scale)
    FigureCanvasAgg(figure)
    axes: Any = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.axis("off")
    for order, shape in enumerate(picture.shapes):
        match shape:
            case Rect(area):
                patch: Any = FancyBboxPatch(
                    (area.x, area.y), area.width, area.height,
                    boxstyle=f"round,pad=0,rounding_size={shape.radius or 0.01}", facecolor=shape.fill,
                    edgecolor=shape.border or "none", linewidth=shape.border_width, linestyle=(0, (5,
                    3)) if shape.dashed else "-", zorder=order,
                )  # fmt: skip
                axes.add_patch(patch)
            case Line(points):
                xs, ys = zip(*points, strict=True)
                axes.add_line(Line2D(xs, ys, color=shape.colour, linewidth=1.2, zorder=order))
            case Words():
                families, has_bold = fonts.of(shape.text)
                align = {"start": "left", "middle": "center", "end": "right"}[shape.anchor]
                axes.text(
                    shape.x, shape.y, drawn(shape.text), fontsize=shape.size, color=shape.colour,
                    fontweight="bold" if shape.bold and has_bold else "normal",
                    family=families, ha=align, va="baseline", parse_math=False, zorder=order,
                )  # fmt: skip
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()


def _spelled(picture: Picture, missing: frozenset[str]) -> Picture:
    if picture.again is not None:
        picture = picture.again(lambda text: spell(text, missing))
    shapes = [
        replace(shape, text=spell(shape.text, missing)) if isinstance(shape, Words) else shape
        for shape in picture.shapes
    ]
    return replace(picture, shapes=shapes)


def check_picture_path(path: Path) -> None:
    """Raises ConfigError for a file that is neither an SVG nor a PNG."""
    if path.suffix.lower() not in (".svg", ".png"):
        raise ConfigError(f"{path}: a picture is written as .svg or .png; name such a file")


def write_picture(picture: Picture, path: Path) -> Path:
    """Writes what the file's name asks for, and makes its folder. Raises ConfigError, MissingExtra."""
    check_picture_path(path)
    data = to_png(picture) if path.suffix.lower() == ".png" else to_svg(picture).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {why_no_folder(path.parent, error)}; name another file"
        ) from error
    return path
