"""Where the columns of a join lie, and how far its output may lag: as recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from headgate.operators.changes import _rank
from headgate.operators.join.operator import JoinOperator, join_layout
from headgate.operators.join.spec import JoinKind, JoinSpec
from headgate.operators.spec import BEFORE_ALL_US, Kind, Leaf

Recorded = Callable[[str, Iterable[str]], None]
INTEGER, TEXT, MONEY = Leaf(Kind.INTEGER), Leaf(Kind.BYTES), Leaf(Kind.DECIMAL, 2)
SIDES = (
    ((), ()), ((INTEGER,), (TEXT,)), ((TEXT, INTEGER, TEXT), (MONEY,)),
    ((INTEGER,), (MONEY, TEXT, MONEY)),
    ((INTEGER,) * 64, (TEXT,) * 3), ((TEXT, MONEY), (TEXT,) * 64),
)  # fmt: skip


def test_columns_of_a_join_lie_as_recorded(recorded: Recorded) -> None:
    lines = []
    for keys in ((), (TEXT, INTEGER)):
        for sides in SIDES:
            made = join_layout(JoinSpec(keys, sides, (0, 0), JoinKind.INNER, (), None))
            table = made.table.key_words, len(made.table.fresh), set(made.table.fresh)
            lines.append(
                f"{len(keys)} keys, {[len(side) for side in sides]}: {table} {made.key_at}"
            )
            parts = (made.side_at, made.expiry_at, made.matched_at, made.string_words)
            lines.append(f"  {parts} {[side.at for side in made.sides]}")
    recorded("join-layouts", lines)


def test_output_of_a_join_is_as_old_as_its_spec_says_or_of_any_age() -> None:
    for holds_us, want in ((0, 100), (-30, 70), (None, BEFORE_ALL_US)):
        spec = JoinSpec((), ((), ()), (0, 0), JoinKind.INNER, (), None, holds_us)
        assert JoinOperator(spec).holds_us(100) == want


def test_rows_have_places_among_those_of_their_key() -> None:
    for of in ([], [0], [0, 0, 0], [1, 1, 4, 7, 7, 7]):
        want = [of[:i].count(key) for i, key in enumerate(of)]
        assert _rank(np.array(of, dtype=np.int64)).tolist() == want
