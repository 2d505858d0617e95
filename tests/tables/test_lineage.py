"""Whether sections lead from one state to another."""

from __future__ import annotations

import numpy as np
import pytest

from headgate.core.errors import StateError
from headgate.tables.heap import HeapStore
from headgate.tables.lineage import leads
from headgate.tables.ports import EMPTY_TOKEN, Section
from headgate_lab.testing.stores import LAYOUT, apply_changes

NO_ROWS = np.zeros((0, 3), dtype=np.int64)
NO_STRINGS = (np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.uint8))


def section(previous: str, token: str, *, full: bool = False) -> Section:
    return Section(token, previous, full, NO_ROWS, *NO_STRINGS, 0)


def test_a_chain_leads_to_the_token_of_its_last_section_and_to_no_other() -> None:
    chain = [section("a", "b"), section("b", "c")]
    assert leads(chain, "a", "c")
    assert not leads(chain, "a", "b")
    assert not leads([], "a", "b")


def test_each_section_of_a_chain_follows_the_one_before() -> None:
    assert not leads([section("a", "b"), section("x", "c")], "a", "c")
    assert not leads([section("a", "b"), section("b", "c", full=True)], "a", "c")


def test_a_history_that_ends_elsewhere_is_refused() -> None:
    store, reached, wanted = HeapStore(LAYOUT), "1" * 32, "2" * 32
    table = store.acquire(0, EMPTY_TOKEN, lambda _: [])
    table.begin()
    apply_changes(table, [("a", 0, 1)])
    whole = table.section(reached, full=True)
    assert HeapStore(LAYOUT).acquire(0, reached, lambda _: [whole]).live_count == 1
    with pytest.raises(StateError, match=f"its changelog leads to {reached}"):
        HeapStore(LAYOUT).acquire(0, wanted, lambda _: [whole])


def test_a_table_that_a_chain_leads_on_is_not_built_anew() -> None:
    first, second = "1" * 32, "2" * 32
    table = HeapStore(LAYOUT).acquire(0, EMPTY_TOKEN, lambda _: [])
    sections = []
    for token, key in ((first, "a"), (second, "b")):
        table.begin()
        apply_changes(table, [(key, 0, 1)])
        sections.append(table.section(token, full=not sections))
        table.commit(token)
    store, asked = HeapStore(LAYOUT), list[str]()
    store.acquire(0, first, lambda _: sections[:1])
    store.release(0)

    def chain(at: str) -> list[Section]:
        asked.append(at)
        return sections[1:]

    assert store.acquire(0, second, chain).live_count == 2
    assert asked == [first]
