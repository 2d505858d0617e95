"""What a table says of itself and of a step: when it can be undone, what changed, what is gone."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.core.errors import StateError
from headgate.tables.heap import HeapStore
from headgate.tables.ports import EMPTY_TOKEN, Section
from headgate_lab.testing.stores import LAYOUT, Change, apply_changes, contents

TOKENS = [EMPTY_TOKEN, *(digit * 32 for digit in "123")]


class Stepped:
    """A table, a step after the other; keeps their sections."""

    def __init__(self) -> None:
        self.store = HeapStore(LAYOUT)
        self.table: Any = self.store.acquire(0, EMPTY_TOKEN, lambda _: [])
        self.sections: list[Section] = []

    def step(self, *changes: Change) -> Section:
        token = TOKENS[len(self.sections) + 1]
        self.table.begin()
        apply_changes(self.table, changes)
        self.sections.append(self.table.section(token))
        self.store.commit(0, token)
        return self.sections[-1]


def test_only_a_step_that_is_committed_can_be_undone() -> None:
    made = Stepped()
    made.table.begin()
    apply_changes(made.table, [("a", 0, 1)])
    assert not made.table.can_roll_back()
    made.store.commit(0, TOKENS[1])
    before = contents(made.table)
    made.sections.append(made.table)
    made.step(("b", 0, 1))
    assert made.table.can_roll_back()
    made.table.roll_back()
    assert contents(made.table) == before
    assert (made.table.token, made.table.live_count) == (TOKENS[1], 1)


def test_a_step_that_outgrows_its_undo_logs_only_what_it_changed() -> None:
    made = Stepped()
    made.step(*(("a", number, 1) for number in range(20)))
    section = made.step(*(("a", number, 1) for number in range(100, 400)))
    assert not made.table.can_roll_back()
    assert len(section.rows) == 300


def test_a_table_that_catches_up_has_what_came_and_not_what_went_and_cannot_go_back() -> None:
    made = Stepped()
    made.step(("a", 0, 1), ("b", 1, 1))
    first = made.sections[0]
    later = HeapStore(LAYOUT)
    later.acquire(0, TOKENS[1], lambda _: [first])
    later.release(0)
    made.step(("b", 1, 0), ("c", 2, 1))
    table: Any = later.acquire(0, TOKENS[2], lambda _: made.sections[1:])
    assert contents(table) == contents(made.table)
    assert {word for word, _ in contents(table)} == {"a", "c"}
    assert (table.token, table.previous) == (TOKENS[2], EMPTY_TOKEN)
    assert not table.can_roll_back()


def test_after_strings_were_compacted_only_a_full_section_says_it_all() -> None:
    made = Stepped()
    made.step(("a", 0, 1), ("b", 1, 1))
    made.table.begin()
    apply_changes(made.table, [("a", 0, 0)])
    made.table.compact((1,))
    with pytest.raises(StateError, match="section must be full"):
        made.table.section(TOKENS[2])
    assert made.table.section(TOKENS[2], full=True).string_bytes.tobytes() == b"b"
