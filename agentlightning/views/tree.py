"""An attempt's trace tree as a picture. Pure: records in, shapes out; drawing.py makes files of them.

From the facts of trace.py come boxes (long chains folded, texts cut), from the sizes of boxes a layout in which
nothing overlaps, and from both the shapes. All text is set in a monospaced font, so that its width is known without a
browser.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import sqrt

from rich.cells import cell_len

from agentlightning.nouns import CallStatus, Failure, Reward
from agentlightning.records.ledger import outcome
from agentlightning.records.traces import AttemptTrace
from agentlightning.text import clip, clip_start, fitting, number, one_line, plural, printable, shorten
from agentlightning.views.drawing import CELL, FONT, INK, SMALL, Area, Line, Picture, Rect, Shape, Words
from agentlightning.views.runs import advantage_of, short_rollout
from agentlightning.views.trace import (
    NO_DECODER,
    Decoder,
    NodeFacts,
    ShownRollout,
    calls_text,
    head_rewards,
    missing_credit,
    node_facts,
    reward_text,
    weight_text,
    words_of,
)

WHOLE_CHAIN = 9
"""Boxes of a chain without branches that are all drawn; of a longer one the first and the last ``CHAIN_ENDS``, and one
for what is between."""
CHAIN_ENDS = 4

WIDTH, PADDING, LINE = 240.0, 9.0, 14.0
CELLS = int((WIDTH - 2 * PADDING) / (CELL * FONT))
"""Characters of a box's line."""
TEXT_LINES = 3
STEM, LABEL, GAP, ROW_GAP, GUTTER = 12.0, 20.0, 18.0, 14.0, 18.0
MARGIN, LEAST_WIDTH = 24.0, 760.0

BRANCHES = {
    "forked": "an earlier prompt, or an earlier turn, once more",
    "new": "another conversation",
    "edited": "the history came back changed",
    "compacted": "earlier turns were dropped or summed up",
    "tools_changed": "other tools than before",
    "kwargs_changed": "other chat_template_kwargs than before",
    "template": "the chat template changed or dropped earlier turns",
}
"""What the reasons of branches mean."""

# Okabe and Ito's colours, told apart under every common colour blindness; the kinds of boxes differ in their borders as
# well.
FAINT, GREEN, ORANGE, BLUE, PURPLE = "#656d76", "#00684c", "#8a5200", "#0059a0", "#8e3b73"


@dataclass(frozen=True, slots=True)
class Kind:
    """How boxes of a kind look, and what the legend calls them."""

    name: str
    fill: str
    border: str
    border_width: float
    dashed: bool
    ink: str


GIVEN = Kind("given: part of a prompt, never trained", "#f3f4f6", "#a8adb4", 1.0, False, FAINT)
TRAINED = Kind("sampled and trained", "#e2f5ed", "#009e73", 1.8, False, GREEN)
UNTRAINED = Kind("sampled, not trained", "#fdf1dc", "#e08e00", 1.8, True, ORANGE)
FOLDED = Kind("several nodes of a chain, folded", "#ffffff", "#656d76", 1.0, True, FAINT)


# --------------------------------------------------------------------------- boxes


@dataclass(frozen=True, slots=True)
class Box:
    """What one box says. ``parent`` is the place of another box, before it. Lines fit the box; ``label`` is at the edge
    above, ``hover`` shown by a browser."""

    parent: int | None
    kind: Kind
    head: str
    corner: str
    agent: str
    detail: str
    text: tuple[str, ...]
    note: tuple[str, ...]
    badges: tuple[str, ...]
    label: str
    hover: str

    @property
    def height(self) -> float:
        lines = 1 + bool(self.agent or self.detail) + len(self.text) + len(self.note)
        return PADDING * 1.6 + LINE * lines + 18.0 * len(badge_rows(self.badges))


def boxes(facts: Sequence[NodeFacts]) -> list[Box]:
    """A box for each node, parents first, but one for the middle of each long chain."""
    made: list[Box] = []
    last_of: dict[int, int] = {}
    for chain in _chains(facts):
        parent = chain[0].node.parent
        at = last_of[parent] if parent is not None else None
        folds = len(chain) > WHOLE_CHAIN
        parts = [[one] for one in chain]
        if folds:
            parts = [*parts[:CHAIN_ENDS], chain[CHAIN_ENDS:-CHAIN_ENDS], *parts[-CHAIN_ENDS:]]
        for part in parts:
            made.append(_box(part[0], at) if len(part) == 1 else _fold(part, at))
            at = len(made) - 1
            last_of.update({one.node.id: at for one in part})
    return made


def _chains(facts: Sequence[NodeFacts]) -> list[list[NodeFacts]]:
    """The nodes cut where something branches or is labelled. A chain comes after the one that it hangs below."""
    children: dict[int | None, int] = {}
    for one in facts:
        children[one.node.parent] = children.get(one.node.parent, 0) + 1
    chain_of: dict[int, list[NodeFacts]] = {}
    chains: list[list[NodeFacts]] = []
    for one in facts:
        parent = one.node.parent
        goes_on = parent is not None and children[parent] == 1 and one.branch is None and one.sample is None
        chain = chain_of[parent] if goes_on and parent is not None else []
        if not chain:
            chains.append(chain)
        chain.append(one)
        chain_of[one.node.id] = chain
    return chains


def _box(facts: NodeFacts, parent: int | None) -> Box:
    node, call, credit = facts.node, facts.call, facts.credit
    trained = credit is not None and credit.trained > 0
    detail = [str(call.status)] if call is not None and call.status is not CallStatus.COMPLETE else []
    detail += [facts.finish] if facts.finish is not None else []
    detail += [f"{facts.malformed} malformed"] if facts.malformed else []
    detail += [f"v{node.version}"] if node.version is not None else []
    agent = one_line(call.agent) if call is not None and call.agent else ""
    kind = "sampled" if node.sampled else "given" if credit is None else "target"
    head = f"{kind} {plural(len(node.token_ids), 'token')}"
    corner = facts.call_text
    if not _beside(head, corner):
        corner, detail = f"call {facts.call_index}", [*detail, f"and {facts.more} more"]
    end = " ".join(detail)
    together = f"{end}  {corner}".strip()
    if not agent and _beside(head, together):
        end, corner = "", together
    note = weight_text(credit).replace("masked:", "not trained:") if credit is not None else ""
    return Box(
        parent,
        TRAINED if trained else UNTRAINED if kind != "given" else GIVEN,
        head,
        corner,
        clip(agent, max(8, CELLS - cell_len(end) - 1)),
        clip(end, CELLS),
        _lines(facts.text, TEXT_LINES) if node.sampled else _both_ends(words_of(facts.text)),
        _lines(note, 2),
        _badges(facts.rewards),
        clip(_label(facts), CELLS),
        shorten(printable(facts.text), 2000),
    )


def _beside(head: str, corner: str) -> bool:
    """Whether both fit into a box's first line."""
    return cell_len(head) * FONT + cell_len(corner) * SMALL + FONT <= CELLS * FONT


def _fold(chain: Sequence[NodeFacts], parent: int | None) -> Box:
    sampled = [one for one in chain if one.node.sampled]
    given = [one for one in chain if not one.node.sampled]
    calls = [one.call_index for one in chain]
    agents = dict.fromkeys(one_line(one.call.agent) for one in chain if one.call is not None and one.call.agent)
    trained = sum(one.credit.trained for one in sampled if one.credit is not None)
    tokens = sum(len(one.node.token_ids) for one in sampled)
    rewards = [reward for one in chain for reward in one.rewards]
    badges = (
        _badges(rewards)
        if len(rewards) <= 2
        else (f"{len(rewards)} rewards, sum {number(sum(r.value for r in rewards))}",)
    )
    lines = (
        f"{len(given)} given, {plural(sum(len(one.node.token_ids) for one in given), 'token')}",
        f"{len(sampled)} sampled, {plural(tokens, 'token')}",
    )
    return Box(
        parent,
        FOLDED,
        f"... {plural(len(chain), 'node')} ...",
        f"calls {min(calls)}-{max(calls)}",
        clip(", ".join(agents), CELLS),
        "",
        lines,
        (f"{trained:,} trained, {tokens - trained:,} not",),
        badges,
        "",
        "\n".join(
            clip(f"{one.call_text} {'sampled' if one.node.sampled else 'given'}: {one_line(one.text)}", 100)
            for one in chain[:20]
        ),
    )


def _label(facts: NodeFacts) -> str:
    parts = [facts.branch] if facts.branch is not None else []
    parts += [f"sample {facts.sample[0]} of {facts.sample[1]}"] if facts.sample is not None else []
    return ", ".join(parts)


def _lines(text: str, most: int) -> tuple[str, ...]:
    """The beginning of a text in at most so many lines of a box, broken between words where that leaves no line half
    empty."""
    rest = one_line(text)[: CELLS * most * 2].strip()
    lines: list[str] = []
    while rest and len(lines) < most - 1:
        line = rest[: fitting(rest, CELLS)]
        space = line.rfind(" ")
        if len(line) < len(rest) and rest[len(line)] != " " and space > CELLS // 2:
            line = line[:space]
        lines.append(line.rstrip())
        rest = rest[len(line) :].lstrip()
    return (*lines, clip(rest, CELLS)) if rest else tuple(lines)


def _both_ends(text: str) -> tuple[str, ...]:
    """A prompt in few lines of a box: whole where it fits, else its first words and its last, which are what the user
    said."""
    whole = _lines(text, 2 * TEXT_LINES)
    if not whole or not whole[-1].endswith("…"):
        return whole
    rest = one_line(text)
    lines, end = [rest[: fitting(rest, CELLS)]], clip_start(rest, CELLS * TEXT_LINES - TEXT_LINES)
    while end:
        lines.append(end[: fitting(end, CELLS)])
        end = end[len(lines[-1]) :].lstrip()
    return tuple(lines)


def _badges(rewards: Iterable[Reward]) -> tuple[str, ...]:
    return tuple(clip(reward_text(reward), CELLS - 2) for reward in rewards)


def _badge_width(text: str) -> float:
    return cell_len(text) * CELL * SMALL + 12.0


def badge_rows(badges: Sequence[str], width: float = WIDTH - 2 * PADDING) -> list[list[tuple[float, str]]]:
    """Badges with where each begins, row by row; of many the first six, and how many there are more."""
    shown = list(badges) if len(badges) <= 6 else [*badges[:6], f"and {len(badges) - 6} more"]
    rows: list[list[tuple[float, str]]] = []
    x = 0.0
    for badge in shown:
        if not rows or x + _badge_width(badge) > width:
            rows.append([])
            x = 0.0
        rows[-1].append((x, badge))
        x += _badge_width(badge) + 5.0
    return rows


# --------------------------------------------------------------------------- layout


@dataclass(frozen=True, slots=True)
class Size:
    """What a layout has to know of a box: its parent's place (before it), its size, and the width of the label above it
    (0: none)."""

    parent: int | None
    width: float
    height: float
    label: float = 0.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a box is, its label, and the corners of the line that leads to it from its parent (none for a root)."""

    box: Area
    label: Area | None
    edge: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Layout:
    places: Sequence[Place]
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class _Child:
    """A block within its parent's: where it begins, and the height of the line above it, which is where ``trunk`` leads
    to where it is not the first."""

    index: int
    x: float
    y: float
    bus: float
    trunk: float | None


@dataclass(frozen=True, slots=True)
class _Block:
    """A box with all below it. ``anchor`` is the middle of the box."""

    width: float
    height: float
    anchor: float
    children: Sequence[_Child]


def lay_out(sizes: Sequence[Size], row_width: float) -> Layout:
    """A tidy tree, top down: a parent stands over the middle of its children, and these side by side in rows of
    ``row_width``.

    A box and all below it fill a block of their own, so nothing overlaps; lines run between blocks only. Rows after the
    first are reached by a line down their left side. Roots are placed in the same way, without lines. Takes time linear
    in the number of boxes.
    """
    below: list[list[int]] = [[] for _ in sizes]
    roots: list[int] = []
    for i, size in enumerate(sizes):
        (roots if size.parent is None else below[size.parent]).append(i)
    blocks: list[_Block | None] = [None] * len(sizes)
    for i in reversed(range(len(sizes))):
        half = max(sizes[i].width, sizes[i].label) / 2
        blocks[i] = _arrange(below[i], sizes, blocks, half, sizes[i].height, row_width)
    whole = _arrange(roots, sizes, blocks, 0.0, 0.0, row_width)

    found: list[Place | None] = [None] * len(sizes)
    stack: list[tuple[_Child, float, float, tuple[float, float] | None]] = [
        (child, 0.0, 0.0, None) for child in whole.children
    ]
    while stack:
        child, left, top, start = stack.pop()
        size, block = sizes[child.index], blocks[child.index]
        assert block is not None
        x, y = left + child.x, top + child.y
        middle = x + block.anchor
        label = Area(middle - size.label / 2, y - LABEL, size.label, LABEL - 4) if size.label else None
        edge: tuple[tuple[float, float], ...] = ()
        if start is not None:
            bus = top + child.bus
            turns = [(start[0], bus)] if child.trunk is None else _around(start, left + child.trunk, bus)
            edge = (start, *turns, (middle, bus), (middle, y))
        found[child.index] = Place(Area(middle - size.width / 2, y, size.width, size.height), label, edge)
        stack.extend((below_it, x, y, (middle, y + size.height)) for below_it in block.children)
    return Layout([place for place in found if place is not None], whole.width, whole.height)


def _around(start: tuple[float, float], trunk: float, bus: float) -> list[tuple[float, float]]:
    first = start[1] + STEM
    return [(start[0], first), (trunk, first), (trunk, bus)]


def _arrange(
    children: Sequence[int],
    sizes: Sequence[Size],
    blocks: Sequence[_Block | None],
    half: float,
    height: float,
    row_width: float,
) -> _Block:
    """The block of a box that reaches ``half`` to both sides of its middle. The blocks of ``children`` are known."""
    if not children:
        return _Block(2 * half, height, half, ())
    known = [block for i in children if (block := blocks[i]) is not None]
    rows: list[list[tuple[int, _Block]]] = [[]]
    used = 0.0
    for i, block in zip(children, known, strict=True):
        if rows[-1] and used + block.width > row_width:
            rows.append([])
            used = 0.0
        rows[-1].append((i, block))
        used += block.width + GAP
    gutter = GUTTER if len(rows) > 1 else 0.0
    placed: list[_Child] = []
    width, end, bus = 0.0, height, height + STEM
    for number_of_row, row in enumerate(rows):
        top = bus + STEM + (LABEL if any(sizes[i].label for i, _ in row) else 0.0)
        x = gutter
        for i, block in row:
            placed.append(_Child(i, x, top, bus, gutter / 2 if number_of_row else None))
            x += block.width + GAP
        width = max(width, x - GAP)
        end = top + max(block.height for _, block in row)
        bus = end + ROW_GAP
    last = len(rows[0]) - 1
    anchor = (placed[0].x + known[0].anchor + placed[last].x + known[last].anchor) / 2
    shift = max(0.0, half - anchor)
    moved = [_Child(c.index, c.x + shift, c.y, c.bus, None if c.trunk is None else c.trunk + shift) for c in placed]
    return _Block(max(width + shift, anchor + shift + half), end, anchor + shift, moved)


def row_width(sizes: Sequence[Size]) -> float:
    """Rows so wide that the whole is about half as high again as it is wide, within four and twelve boxes."""
    area = sum((size.width + GAP) * (size.height + 2 * STEM) for size in sizes)
    return min(max(sqrt(area * 1.5), 4 * (WIDTH + GAP)), 12 * (WIDTH + GAP))


# --------------------------------------------------------------------------- drawing


def draw_tree(view: ShownRollout, trace: AttemptTrace, decode: Decoder | None = None) -> Picture:
    """The picture of one attempt's tree, with a title and a legend of what is in it."""

    def again(spell: Callable[[str], str]) -> Picture:
        def decode_spelled(ids: Sequence[int]) -> str:
            return spell(decode(ids)) if decode is not None else ""

        return draw_tree(*_spelled(view, trace, spell), None if decode is None else decode_spelled)

    made = boxes(node_facts(view, trace, decode))
    sizes = [Size(box.parent, WIDTH, box.height, _label_width(box.label)) for box in made]
    layout = lay_out(sizes, row_width(sizes))
    width = max(layout.width + 2 * MARGIN, LEAST_WIDTH)
    head, bottom = _head(view, trace, made, width, decoded=decode is not None)
    shapes = [*head]
    dx, dy = (width - layout.width) / 2, bottom - STEM
    placed = list(zip(made, layout.places, strict=True))
    for box, place in placed:
        if place.edge:
            shapes.append(Line(tuple((x + dx, y + dy) for x, y in place.edge), BLUE if box.label else "#8c939c"))
    for box, place in placed:
        shapes += _draw_box(box, _moved(place.box, dx, dy))
        if place.label is not None:
            area = _moved(place.label, dx, dy)
            shapes.append(Rect(area, "#e7f1fa", BLUE, 0.8, radius=area.height / 2))
            shapes.append(Words(area.x + area.width / 2, area.y + 11.5, box.label, SMALL, BLUE, anchor="middle"))
    title = (
        f"{view.run.record.id}, rollout {short_rollout(view.rollout)}, attempt {trace.attempt.number}: "
        f"{outcome(view.rollout)}"
    )
    return Picture(width, layout.height + dy + MARGIN, shapes, title, again)


def _spelled(view: ShownRollout, trace: AttemptTrace, spell: Callable[[str], str]) -> tuple[ShownRollout, AttemptTrace]:
    """Both with everything that somebody wrote, and the picture shows, as ``spell`` writes it."""

    def maybe(text: str | None) -> str | None:
        return None if text is None else spell(text)

    def failure(given: Failure | None) -> Failure | None:
        return None if given is None else replace(given, message=spell(given.message))

    rollout = replace(view.rollout, task=spell(str(view.rollout.task)), failure=failure(view.rollout.failure))
    rewards = [replace(reward, name=spell(reward.name), agent=maybe(reward.agent)) for reward in view.rewards]
    calls = tuple(replace(call, agent=maybe(call.agent), error=maybe(call.error)) for call in trace.calls)
    attempt = replace(trace.attempt, failure=failure(trace.attempt.failure))
    run = replace(view.run, record=replace(view.run.record, id=spell(view.run.record.id)))
    return replace(view, run=run, rollout=rollout, rewards=rewards), replace(trace, attempt=attempt, calls=calls)


def _label_width(label: str) -> float:
    return cell_len(label) * CELL * SMALL + 14.0 if label else 0.0


def _moved(area: Area, dx: float, dy: float) -> Area:
    return Area(area.x + dx, area.y + dy, area.width, area.height)


def _draw_box(box: Box, area: Area) -> list[Shape]:
    kind = box.kind
    shapes: list[Shape] = []
    if kind is FOLDED:
        shapes.append(
            Rect(Area(area.x + 4, area.y - 4, area.width - 8, 12), kind.fill, kind.border, kind.border_width, radius=6)
        )
    shapes.append(Rect(area, kind.fill, kind.border, kind.border_width, kind.dashed, 6, box.hover))
    left, right, y = area.x + PADDING, area.x + area.width - PADDING, area.y + PADDING + 8
    shapes.append(Words(left, y, box.head, colour=kind.ink, bold=True))
    shapes.append(Words(right, y, box.corner, SMALL, FAINT, anchor="end"))
    if box.agent or box.detail:
        y += LINE
        if box.agent:
            shapes.append(Words(left, y, box.agent, colour=BLUE, bold=True))
        if box.detail:
            shapes.append(
                Words(right if box.agent else left, y, box.detail, SMALL, FAINT, anchor="end" if box.agent else "start")
            )
    for text in box.text:
        y += LINE
        shapes.append(Words(left, y, text, colour=FAINT if kind is GIVEN else INK))
    for text in box.note:
        y += LINE
        shapes.append(Words(left, y, text, SMALL, kind.ink, bold=True))
    return [*shapes, *_draw_badges(badge_rows(box.badges), left, y + 5)]


def _draw_badges(rows: Sequence[Sequence[tuple[float, str]]], left: float, top: float) -> list[Shape]:
    shapes: list[Shape] = []
    for i, row in enumerate(rows):
        for x, text in row:
            area = Area(left + x, top + 18.0 * i, _badge_width(text), 15.0)
            shapes.append(Rect(area, PURPLE, radius=7.5))
            shapes.append(Words(area.x + 6, area.y + 11, text, SMALL, "#ffffff", bold=True))
    return shapes


def _head(
    view: ShownRollout, trace: AttemptTrace, made: Sequence[Box], width: float, *, decoded: bool
) -> tuple[list[Shape], float]:
    """Title and legend, and where they end."""
    rollout, attempt = view.rollout, trace.attempt
    cells = int((width - 2 * MARGIN) / (CELL * FONT))
    tokens = sum(len(node.token_ids) for node in trace.nodes if node.sampled)
    advantage = advantage_of(view.run, rollout)
    facts = [
        f"attempt {attempt.number} of {len(view.attempts)}: {attempt.status}",
        calls_text(trace),
        f"{plural(tokens, 'token')} sampled",
    ]
    facts += [f"advantage {advantage:+.3f}"] if advantage is not None else []
    lines = [
        (f"run {view.run.record.id}   {rollout.mode} step {view.run.step_of(rollout)}, group {rollout.group}", FAINT),
        ("   ".join(facts), INK),
        (f"task {one_line(str(rollout.task))}", FAINT),
    ]
    for failure in dict.fromkeys(failure for failure in (attempt.failure, rollout.failure) if failure is not None):
        lines.append((one_line(f"{failure.reason}: {failure.message}"), ORANGE))
    odd = [call for call in trace.calls if call.status in (CallStatus.REFUSED, CallStatus.INCOMPLETE, CallStatus.LATE)]
    lines += [
        (one_line(f"call {call.index} {call.status}: {call.error or 'no reason recorded'}"), ORANGE) for call in odd[:3]
    ]
    lines += (
        [(f"and {len(odd) - 3} more calls that were refused or not recorded whole", ORANGE)] if len(odd) > 3 else []
    )
    missing = missing_credit(view, [trace])
    lines += [] if missing is None else [(missing, ORANGE)]
    lines += [] if decoded else [(NO_DECODER, FAINT)]
    lines += [] if made else [("no call of it was recorded", INK)]
    y = MARGIN + 14
    shapes: list[Shape] = [
        Words(
            MARGIN, y, clip(f"rollout {short_rollout(rollout)}: {outcome(rollout)}", int(cells * 0.68)), 16.0, bold=True
        )
    ]
    y += 4
    for text, colour in lines:
        y += 16
        shapes.append(Words(MARGIN, y, clip(text, cells), colour=colour))
    rewards = [f"final reward {number(rollout.reward)}"] if rollout.reward is not None else []
    rows = badge_rows(
        [
            *rewards,
            *(
                clip(f"{reward_text(r)} ({r.source}{f', {one_line(r.agent)}' if r.agent else ''})", 60)
                for r in head_rewards(view, trace)
            ),
        ],
        width - 2 * MARGIN,
    )
    shapes += _draw_badges(rows, MARGIN, y + 8)
    y += 8 + 18 * len(rows)
    legend, y = _legend(made, width, y + 6)
    return [*shapes, *legend], y + 10


def _legend(made: Sequence[Box], width: float, y: float) -> tuple[list[Shape], float]:
    """The kinds of boxes that there are, and what the labels mean."""
    shapes: list[Shape] = []
    x = MARGIN
    for kind in (GIVEN, TRAINED, UNTRAINED, FOLDED):
        if all(box.kind is not kind for box in made):
            continue
        item = 24 + len(kind.name) * CELL * SMALL + 18
        if x > MARGIN and x + item > width - MARGIN:
            x, y = MARGIN, y + 18
        shapes.append(Rect(Area(x, y, 18, 12), kind.fill, kind.border, kind.border_width, kind.dashed, 3))
        shapes.append(Words(x + 24, y + 10, kind.name, SMALL, FAINT))
        x += item
    y += 18 if x > MARGIN else 0
    labels = {word for box in made for word in box.label.split(", ")}
    for reason in (reason for reason in BRANCHES if reason in labels):
        shapes.append(Words(MARGIN, y + 10, reason, SMALL, BLUE, bold=True))
        shapes.append(Words(MARGIN + 90, y + 10, BRANCHES[reason], SMALL, FAINT))
        y += 15
    return shapes, y
