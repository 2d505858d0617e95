"""Tests an implementation of `Store`; a subclass inherits the tests.

::

    class TestMyStore(StoreContract):
        def open_store(self, directory, layout):
            return MyStore(directory, layout)
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.core.errors import StateError
from headgate.tables.ports import EMPTY_TOKEN, I64, U8, Chain, Section, Store, Table, TableLayout

LAYOUT = TableLayout(key_words=2, fresh=(0, 100))
"""Key: a string's id + 1 and a number; values: a count from 0 and a balance from 100."""

GROUP = 5
Model = dict[tuple[str, int], tuple[int, int]]
Change = tuple[str, int, int]


def fresh_token() -> str:
    """Return a random token."""
    return secrets.token_hex(16)


def strings(values: Sequence[str]) -> tuple[I64, U8]:
    """Return offsets and bytes of `values`, for `Table.intern`."""
    encoded = [value.encode() for value in values]
    offsets = np.zeros(len(encoded) + 1, dtype=np.int64)
    np.cumsum([len(one) for one in encoded], out=offsets[1:])
    return offsets, np.frombuffer(b"".join(encoded), dtype=np.uint8)


class History:
    """Holds the committed sections of one key group, as a chain of manifests does.

    Attributes
    ----------
    sections : oldest first
    asked : tokens with which `chain` was called
    """

    def __init__(self) -> None:
        self.sections: list[Section] = []
        self.asked: list[str] = []

    @property
    def token(self) -> str:
        """Newest committed token."""
        return self.sections[-1].token if self.sections else EMPTY_TOKEN

    def chain(self, token: str) -> list[Section]:
        """Return the sections after `token`, from the newest full section on if that is later."""
        self.asked.append(token)
        found: list[Section] = []
        for section in reversed(self.sections):
            if section.token == token:
                break
            found.insert(0, section)
            if section.full:
                break
        return found


def apply_changes(table: Table, changes: Sequence[Change]) -> None:
    """Add `amount` to the row (word, number) for each change; amount 0 deletes the row."""
    for word, number, amount in changes:
        ids = table.intern(*strings([word]))
        index = table.upsert(np.array([[ids[0] + 1, number]], dtype=np.int64))
        if amount == 0:
            table.delete(index)
        else:
            table.rows[index, 3] += 1
            table.rows[index, 4] += amount


def apply_to_model(model: Model, changes: Sequence[Change]) -> Model:
    """Return the expected rows after `apply_changes`."""
    after = dict(model)
    for word, number, amount in changes:
        if amount == 0:
            after.pop((word, number), None)
        else:
            count, balance = after.get((word, number), (0, 100))
            after[word, number] = (count + 1, balance + amount)
    return after


def contents(table: Table) -> Model:
    """Return the rows of a table, with strings resolved."""
    offsets, data = table.strings()
    raw = data.tobytes()
    words = [raw[a:b].decode() for a, b in itertools.pairwise(offsets)]
    rows = table.rows[table.live()]
    found = {(words[row[1] - 1], int(row[2])): (int(row[3]), int(row[4])) for row in rows}
    assert len(found) == len(rows) == table.live_count
    return found


def step(
    store: Store, history: History, changes: Sequence[Change], *, full: bool = False
) -> Section:
    """Run one step to its end, without adding it to the history."""
    table = store.acquire(GROUP, history.token, history.chain)
    table.begin()
    apply_changes(table, changes)
    section = table.section(fresh_token(), full=full)
    store.commit(GROUP, section.token)
    store.release(GROUP)
    return section


def read(store: Store, history: History) -> Model:
    """Return the rows of the store at the history's end."""
    found = contents(store.acquire(GROUP, history.token, history.chain))
    store.release(GROUP)
    return found


def _words(count: int, amount: int = 1) -> list[Change]:
    return [(f"word {i}", i, amount) for i in range(count)]


_changes = st.lists(
    st.tuples(
        st.sampled_from(["", "a", "b", "longer than eight bytes", "ü", "\0", "\0\0"]),
        st.integers(-3, 3),
        st.integers(0, 4),
    ),
    max_size=12,
)
_ends = st.sampled_from(["commit", "commit", "full", "compact", "lost", "abandoned", "elsewhere"])


class StoreContract:
    """Holds the tests; inherit, and supply `open_store`."""

    def open_store(self, directory: Path, layout: TableLayout) -> Store:
        """Return a new store; `directory` is private to the test and may be ignored."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        """Return the store under test."""
        tmp_path.chmod(0o700)
        return self.open_store(tmp_path / "operator", LAYOUT)

    def test_equals_a_dictionary_after_steps_that_grow_it(self, store: Store) -> None:
        """Tables of many sizes, up to hundreds of rows and strings, keep all rows."""
        history, model = History(), Model()
        for count in (1, 60, 700, 701):
            changes = _words(count)
            model = apply_to_model(model, changes)
            history.sections.append(step(store, history, changes))
            assert read(store, history) == model

    def test_new_rows_start_fresh_even_where_a_deleted_one_was(self, store: Store) -> None:
        """Values of a deleted row do not come back."""
        history = History()
        history.sections.append(step(store, history, [("a", 1, 7)]))
        history.sections.append(step(store, history, [("a", 1, 0), ("a", 1, 2)]))
        assert read(store, history) == {("a", 1): (1, 102)}

    def test_undoes_a_step_that_was_not_committed_by_the_driver(self, store: Store) -> None:
        """A retried batch starts where the lost attempt started, without asking for the history."""
        history = History()
        model = apply_to_model({}, _words(40))
        history.sections.append(step(store, history, _words(40)))
        step(store, history, [*_words(42, 5), ("word 3", 3, 0), ("new", 0, 1)])
        history.asked.clear()
        assert read(store, history) == model
        assert not history.asked
        history.sections.append(step(store, history, [("new", 0, 1)]))
        assert read(store, history) == apply_to_model(model, [("new", 0, 1)])

    def test_rebuilds_after_a_lost_step_that_made_the_table_grow(self, store: Store) -> None:
        """Growth makes undo impossible; the history still gives the answer."""
        history = History()
        history.sections.append(step(store, history, _words(10)))
        step(store, history, _words(900, 3))
        assert read(store, history) == apply_to_model({}, _words(10))

    def test_catches_up_by_later_sections_only(self, store: Store, tmp_path: Path) -> None:
        """A host with an older state of the group applies only the later sections."""
        history, other = History(), self.open_store(tmp_path / "other_host", LAYOUT)
        model = apply_to_model({}, _words(30))
        history.sections.append(step(store, history, _words(30)))
        for amount in (2, 3, 0):
            changes = _words(35, amount)
            model = apply_to_model(model, changes)
            history.sections.append(step(other, history, changes))
        history.asked.clear()
        assert read(store, history) == model
        assert history.asked == [history.sections[0].token]
        other.close()

    def test_catches_up_behind_an_orphaned_step(self, store: Store, tmp_path: Path) -> None:
        """The attempt that ran here was lost; the one elsewhere was committed."""
        history, other = History(), self.open_store(tmp_path / "other_host", LAYOUT)
        history.sections.append(step(store, history, _words(30)))
        step(store, history, _words(5, 9))
        history.sections.append(step(other, history, _words(7, 4)))
        assert read(store, history) == read(other, history)
        other.close()

    def test_snapshot_then_restore_is_identity(self, store: Store, tmp_path: Path) -> None:
        """A full section alone gives the same rows and strings."""
        history = History()
        history.sections.append(step(store, history, _words(80)))
        full = step(store, history, [("word 7", 7, 0)], full=True)
        history.sections = [full]
        other = self.open_store(tmp_path / "other_host", LAYOUT)
        assert read(other, history) == read(store, history)
        assert len(full.rows) == 80 - 1
        other.close()

    def test_compaction_drops_strings_and_changes_no_answer(self, store: Store) -> None:
        """Strings of deleted rows are dropped; the section of that step must be full."""
        history = History()
        history.sections.append(step(store, history, _words(50)))
        table = store.acquire(GROUP, history.token, history.chain)
        table.begin()
        apply_changes(table, _words(45, 0))
        before = contents(table)
        table.compact([1])
        assert contents(table) == before
        assert len(table.strings()[0]) == 50 - 45 + 1
        with pytest.raises(StateError, match="must be full"):
            table.section(fresh_token())
        section = table.section(fresh_token(), full=True)
        store.commit(GROUP, section.token)
        store.release(GROUP)
        history.sections.append(section)
        assert read(store, history) == before
        history.sections.append(step(store, history, [("word 1", 1, 1)]))
        assert read(store, history) == apply_to_model(before, [("word 1", 1, 1)])

    def test_never_uses_a_table_that_was_left_dirty(self, store: Store) -> None:
        """An attempt that failed in the middle has no effect."""
        history = History()
        history.sections.append(step(store, history, _words(8)))
        table = store.acquire(GROUP, history.token, history.chain)
        table.begin()
        apply_changes(table, _words(8, 50))
        store.release(GROUP)
        assert read(store, history) == apply_to_model({}, _words(8))

    def test_refuses_a_chain_that_does_not_lead_to_the_token(self, store: Store) -> None:
        """A gap in the history is an error, never an older state."""
        history = History()
        for amount in (1, 2, 3):
            history.sections.append(step(store, history, _words(3, amount)))
        del history.sections[1]
        step(store, history, _words(3, 9))
        step(store, History(), _words(2))
        with pytest.raises(StateError, match="cannot be brought"):
            store.acquire(GROUP, fresh_token(), history.chain)
        with pytest.raises(StateError, match="cannot be brought"):
            store.acquire(GROUP, history.token, history.chain)

    def test_refuses_changes_outside_a_step_and_groups_not_held(self, store: Store) -> None:
        """Each misuse raises an error."""
        chain: Chain = History().chain
        with pytest.raises(StateError, match="not held"):
            store.release(GROUP)
        with pytest.raises(StateError, match="not held"):
            store.commit(GROUP, fresh_token())
        table = store.acquire(GROUP, EMPTY_TOKEN, chain)
        with pytest.raises(StateError, match="held already"):
            store.acquire(GROUP, EMPTY_TOKEN, chain)
        with pytest.raises(StateError, match="call begin"):
            table.upsert(np.ones((1, 2), dtype=np.int64))
        table.begin()
        with pytest.raises(StateError, match="no commit"):
            table.begin()
        with pytest.raises(StateError, match="key words"):
            table.upsert(np.ones((1, 3), dtype=np.int64))
        with pytest.raises(StateError, match="deleted from a table"):
            table.delete(np.array([1 << 40]))
        with pytest.raises(StateError, match="offsets"):
            table.intern(np.array([0, 9]), np.zeros(3, dtype=np.uint8))
        for bad in (EMPTY_TOKEN, "../../etc", "A" * 32):
            with pytest.raises(StateError, match="cannot name a state"):
                store.commit(GROUP, bad)

    @settings(
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,  # each example makes its own directory
            HealthCheck.differing_executors,  # each store inherits the test
            HealthCheck.too_slow,
        ],
    )
    @given(plan=st.lists(st.tuples(_changes, _ends), min_size=1, max_size=12))
    def test_equals_a_dictionary_whatever_happens(
        self, tmp_path: Path, plan: list[tuple[list[Change], str]]
    ) -> None:
        """Random steps: committed, snapshot, compacted, lost, abandoned, run on another host."""
        place = tmp_path / secrets.token_hex(8)
        place.mkdir(mode=0o700)
        store, other = (self.open_store(place / name, LAYOUT) for name in ("here", "there"))
        history, model = History(), Model()
        for changes, end in plan:
            at = other if end == "elsewhere" else store
            table = at.acquire(GROUP, history.token, history.chain)
            assert contents(table) == model
            table.begin()
            apply_changes(table, changes)
            after = apply_to_model(model, changes)
            assert contents(table) == after
            if end == "compact":
                table.compact([1])
            section = table.section(fresh_token(), full=end in ("full", "compact"))
            if end != "abandoned":
                at.commit(GROUP, section.token)
            at.release(GROUP)
            if end not in ("abandoned", "lost"):
                history.sections.append(section)
                model = after
        assert read(store, history) == read(other, history) == model
        store.close()
        other.close()
