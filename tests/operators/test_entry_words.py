"""Tests in which words of a row the parts of an entry lie, and that states are known by their names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headgate.core.errors import HeadgateError
from headgate.operators.entries import entry_layout
from headgate.operators.processor import State, Variable, VariableChanges, fitted
from headgate.operators.spec import Kind, Leaf

MANY = pa.schema([(f"n{i}", pa.int64()) for i in range(70)])
VALUE = pa.schema([("n", pa.int64()), ("t", pa.string())])
NONE = pa.schema([])


def test_the_widest_variable_gives_the_words_of_null_bits() -> None:
    few, many = Variable("few", NONE, VALUE), Variable("many", NONE, MANY)
    bits = 1 + (70 - 1) // 63
    for variables in ((few, many), (many, few)):
        layout = entry_layout((), variables)
        by_name = {columns.variable.name: columns for columns in layout.variables}
        assert by_name["many"].at == tuple(range(bits, bits + 70))
        assert by_name["few"].at == (bits, bits + 70)
        assert (layout.texts_from, layout.texts) == (bits + 70, 1)


def test_heads_of_lists_and_maps_lie_before_numbers_and_texts_last() -> None:
    one = Variable("one", NONE, VALUE)
    keyed = Variable("map", pa.schema([("k", pa.string())]), VALUE)
    keys = (Leaf(Kind.INTEGER), Leaf(Kind.BYTES))
    layout = entry_layout(keys, (one, keyed))
    assert [columns.at for columns in layout.variables] == [(1, 3), (3, 1, 4)]
    assert [columns.head_at for columns in layout.variables] == [0, 1]
    assert [columns.number for columns in layout.variables] == [0, 1]
    assert (layout.texts_from, layout.texts) == (3, 2)
    assert layout.value_at == 1 + layout.table.key_words
    assert layout.headed == (layout.variables[1],)
    assert layout.variable_at == layout.table.key_words - 2
    value = layout.value_at
    assert layout.string_words == (1 + layout.key_at[1], value + 3, value + 4)
    empty = entry_layout((), ())
    assert (len(empty.table.fresh), empty.texts_from, empty.texts) == (1, 1, 0)


# --- States by name -----------------------------------------------------------------------------------


def state() -> State:
    variables = (Variable("count", NONE, VALUE), Variable("sum", NONE, VALUE))
    before: Any = {"count": "counts", "sum": "sums"}
    return State(variables, before, 3)


OF = np.array([0, 2])
ROWS = pa.RecordBatch.from_pydict({"n": [1, 2], "t": ["a", "b"]}, schema=VALUE)


def test_a_state_is_read_and_changed_by_its_name() -> None:
    made = state()
    read: Any = made["sum"]
    assert read == "sums"
    made.clear("sum", OF)
    made.put("sum", OF, ROWS)
    changed = made.changes["sum"]
    assert [cleared.tolist() for cleared in changed.cleared] == [[0, 2]]
    [(of, rows)] = changed.put
    assert (of.tolist(), rows) == ([0, 2], ROWS)
    assert changed.removed == []
    assert made.changes["count"] == VariableChanges()


def test_a_state_that_nobody_declared_is_refused_by_its_name() -> None:
    made = state()
    asks = (
        lambda name: made[name], lambda name: made.put(name, OF, ROWS),
        lambda name: made.remove(name, OF, ROWS), lambda name: made.clear(name, OF),
    )  # fmt: skip
    for ask in asks:
        with pytest.raises(HeadgateError, match=r'"cuont".*did you mean.*count'):
            ask("cuont")
        with pytest.raises(HeadgateError, match="; there are count, sum"):
            ask("xyz")
    assert all(changes == VariableChanges() for changes in made.changes.values())


def test_rows_fit_by_name_and_are_refused_without_their_values() -> None:
    swapped = pa.RecordBatch.from_pydict({"t": ["a"], "more": [1], "n": pa.array([1], pa.int32())})
    assert fitted(swapped, VALUE, "it").to_pydict() == {"n": [1], "t": ["a"]}
    assert fitted(swapped, VALUE, "it").schema == VALUE
    wrong = pa.RecordBatch.from_pydict({"n": ["secret"], "t": ["a"]})
    with pytest.raises(HeadgateError) as refused:
        fitted(wrong, VALUE, "it")
    assert str(refused.value) == 'column "n" of it is string and does not fit int64.'
    assert fitted(swapped, NONE, "it").num_rows == 1
