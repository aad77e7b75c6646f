"""Tokenising beside the event loop: each call gets the ids that it would have got alone, whatever becomes of the
others."""

from __future__ import annotations

import asyncio
import threading
from array import array
from collections.abc import Sequence

import pytest

from agentlightning.errors import TemplateError
from agentlightning.gateway.encoder import AT_ONCE, Encoder
from agentlightning.gateway.tree import TraceTree
from agentlightning.nouns import Message
from tests.gateway.conftest import Build, until
from tests.gateway.scripted import GlassTemplate


class Slow(GlassTemplate):
    """Waits for ``go`` where there is more than one text, and refuses "bad"."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.batches: list[int] = []

    def encode_all(self, texts: Sequence[tuple[str, bool]]) -> list[array[int] | TemplateError]:
        self.batches.append(len(texts))
        if len(texts) > 1:
            assert self.go.wait(20)
        return [TemplateError(text) if text == "bad" else self.encode(text, start=start) for text, start in texts]


async def test_texts_that_wait_together_get_the_ids_they_would_get_alone() -> None:
    slow, glass, encoder = Slow(), GlassTemplate(), Encoder()
    waiting = [asyncio.create_task(encoder.encode(slow, text, start=False)) for text in ("a", "bad", "b")]
    waiting += [asyncio.create_task(encoder.encode(glass, "c", start=True))]
    await until(lambda: slow.batches)
    waiting += [asyncio.create_task(encoder.encode(slow, text, start=False)) for text in ("d", "e", "f")]
    await asyncio.sleep(0)
    assert slow.batches == [3], "while some are tokenised the others gather"
    slow.go.set()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(outcomes.pop(1), TemplateError)
    assert outcomes == [glass.encode(text, start=False) for text in "abcdef"]
    assert slow.batches == [3, 3]
    assert await encoder.encode(slow, "g", start=False) == glass.encode("g", start=False)
    encoder.close()


async def test_a_long_text_is_tokenised_beside_the_loop_also_where_it_is_alone() -> None:
    """Megabytes would hold up every attempt for seconds; for a few kilobytes another thread takes longer than they
    do."""

    class Told(GlassTemplate):
        def encode_all(self, texts: Sequence[tuple[str, bool]]) -> list[array[int] | TemplateError]:
            threads.append(threading.get_ident())
            return super().encode_all(texts)

    threads: list[int] = []
    told, encoder = Told(), Encoder()
    for text in ("x" * AT_ONCE, "x" * (AT_ONCE + 1)):
        assert await encoder.encode(told, text, start=True) == told.encode(text, start=True)
    assert [thread == threading.get_ident() for thread in threads] == [True, False]
    encoder.close()


async def test_a_call_withdrawn_while_its_text_is_tokenised_harms_no_other() -> None:
    slow, encoder = Slow(), Encoder()
    first, second = (asyncio.create_task(encoder.encode(slow, text, start=False)) for text in ("one", "two"))
    await until(lambda: slow.batches)
    first.cancel()
    await asyncio.sleep(0)
    slow.go.set()
    assert await second == GlassTemplate().encode("two", start=False)
    with pytest.raises(asyncio.CancelledError):
        await first
    encoder.close()


async def test_a_defect_of_a_template_reaches_those_who_wait_for_it() -> None:
    class Broken(GlassTemplate):
        def encode_all(self, texts: Sequence[tuple[str, bool]]) -> list[array[int] | TemplateError]:
            raise ZeroDivisionError

    encoder, broken, glass = Encoder(), Broken(), GlassTemplate()
    outcomes = await asyncio.gather(
        *(encoder.encode(each, "x", start=False) for each in (broken, glass, broken)), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [ZeroDivisionError, array, ZeroDivisionError]
    encoder.close()


async def test_equal_prompts_that_are_tokenised_at_once_share_their_node(build: Build) -> None:
    slow = Slow()
    house = await build(template=slow)
    visit = await house.open()
    asking = [asyncio.create_task(visit.ask(text)) for text in ("same", "same", "another", "same")]
    await asyncio.sleep(0.3)
    slow.go.set()
    await asyncio.gather(*asking)
    given = [node for node in await visit.nodes() if not node.sampled]
    assert len(given) == 2
    assert {slow.decode(node.token_ids).count("same") for node in given} == {0, 1}
    assert sorted(call.branch for call in await visit.calls()) == ["forked", "forked", "new", "root"]


def test_a_prompt_that_was_withdrawn_meanwhile_is_planned_anew() -> None:
    tree, template = TraceTree(), GlassTemplate()
    first = tree.place([Message("user", "q")], (), "main", template)
    found = tree.find([Message("user", "p")], (), "main", template)
    twin = tree.place([Message("user", "p")], (), "main", template)
    tree.withdraw(twin)
    tree.withdraw(first)
    placement = tree.place_continuation(found, template.encode(found.text, start=True))
    assert placement.prompt_ids == twin.prompt_ids
    assert placement.branch == "root"
