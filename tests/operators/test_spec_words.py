"""What a spec of an operator says: whether it may be split, when it has results, what is late."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.errors import UnsupportedQuery
from headgate.operators.aggregate import AggregateOperator
from headgate.operators.spec import (
    MAX_KEPT,
    Aggregate,
    AggregateSpec,
    Keep,
    Kept,
    Kind,
    Leaf,
    Op,
    OperatorSpec,
    OutputMode,
    Program,
    TimeKey,
)

INTEGER = Leaf(Kind.INTEGER)
SUM = Aggregate(Op.SUM_INTEGER, (INTEGER,))
LIST = Kept((INTEGER,), Keep.LIST)


def of(
    *aggregates: Aggregate,
    time: TimeKey | None = None,
    mode: OutputMode = OutputMode.UPDATE,
    kept: tuple[Kept, ...] = (),
) -> AggregateSpec:
    return AggregateSpec((INTEGER,), time, aggregates, mode, kept)


def by(op: Op, **more: Any) -> Aggregate:
    return Aggregate(op, (INTEGER,), **more)


def merged(any_order: bool) -> Aggregate:
    return by(Op.MERGED, program=Program((("left", 0),), (0,), any_order))


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (of(SUM), ""),
        (of(SUM, time=TimeKey(10, 10)), ""),
        (of(SUM, time=TimeKey(10, 5, expires=False)), ""),
        (of(SUM, merged(True)), ""),
        (of(SUM, kept=(LIST,)), "values of its records are stored one by one"),
        (of(SUM, time=TimeKey(10, 10, session=True)), "a session grows with every record"),
        (of(SUM, time=TimeKey(10, 5)), "a record may be late for one of its overlapping windows"),
        (of(SUM, by(Op.FIRST)), "first and last depend on the order"),
        (of(by(Op.LAST)), "first and last depend on the order"),
        (of(by(Op.MIN_BY)), "min_by and max_by keep the one that came last"),
        (of(by(Op.MAX_BY)), "min_by and max_by keep the one that came last"),
        (of(by(Op.REGISTERS)), "a sketch comes as a hash of each record"),
        (of(merged(True), merged(False)), "may depend on the order of the records"),
        (OperatorSpec(), "only the state of aggregates can be merged from parts"),
    ],
)
def test_why_the_records_of_one_key_may_not_be_split(spec: OperatorSpec, why: str) -> None:
    assert why in spec.unsplittable
    assert bool(spec.unsplittable) == bool(why)


def test_records_are_merged_on_their_way_unless_something_of_them_is_kept() -> None:
    assert of(SUM, by(Op.FIRST)).merges == (SUM, by(Op.FIRST))
    assert of(SUM, kept=(LIST,)).merges is None
    assert of(SUM, by(Op.REGISTERS)).merges is None


def test_an_operator_of_no_kind_has_the_usual_values() -> None:
    plain = OperatorSpec()
    assert (plain.shared, plain.holds_us, plain.by_clock, plain.merges) == (False, 0, False, None)


@pytest.mark.parametrize(
    ("time", "mode", "after_us"),
    [
        (TimeKey(10, 5), OutputMode.APPEND, 10),
        (TimeKey(10, 5), OutputMode.UPDATE, None),
        (TimeKey(10, 5), OutputMode.COMPLETE, None),
        (TimeKey(0, 0), OutputMode.APPEND, None),
        (TimeKey(10, 5, expires=False), OutputMode.APPEND, None),
        (TimeKey(10, 10, session=True), OutputMode.APPEND, None),
        (None, OutputMode.UPDATE, None),
    ],
)
def test_windows_have_results_when_they_are_over(
    time: TimeKey | None, mode: OutputMode, after_us: int | None
) -> None:
    assert of(SUM, time=time, mode=mode).results_after_us == after_us


def test_what_a_checkpoint_depends_on_is_told_as_json() -> None:
    spec = AggregateSpec(
        (INTEGER, Leaf(Kind.DECIMAL, 3)), TimeKey(10, 5, 2),
        (SUM, Aggregate(Op.MAX_BY, (INTEGER,), (Leaf(Kind.FLOAT),))), OutputMode.APPEND,
        (Kept((Leaf(Kind.BYTES),), Keep.SET),),
    )  # fmt: skip
    integer, number, decimal, text, _ = (int(kind) for kind in Kind)
    assert spec.to_json() == {
        "keys": [[integer, 0], [decimal, 3]],
        "time": [10, 5, 2],
        "aggregates": [["SUM_INTEGER", [[integer, 0]]], ["MAX_BY", [[integer, 0], [number, 0]]]],
        "kept": [["SET", [[text, 0]]]],
    }
    assert "kept" not in of(SUM).to_json()
    assert of(SUM).to_json()["time"] is None


def test_columns_that_are_kept_have_a_limit() -> None:
    kept = (Kept((INTEGER,) * (MAX_KEPT - 1), Keep.BAG),)
    of(SUM, kept=kept)
    with pytest.raises(UnsupportedQuery, match=f"need {MAX_KEPT + 1} columns together, more than"):
        of(SUM, kept=(*kept, LIST))
    many = AggregateSpec((INTEGER,) * (MAX_KEPT + 5), None, (SUM,), OutputMode.UPDATE)
    assert len(many.keys) == MAX_KEPT + 5


def test_slices_of_windows() -> None:
    assert (TimeKey(10, 4).slice_us, TimeKey(10, 4).overlap, TimeKey(10, 4).sliced) == (2, 3, True)
    assert (TimeKey(10, 5).overlap, TimeKey(9, 3).overlap, TimeKey(10, 9).overlap) == (2, 3, 2)
    assert (TimeKey(10, 10).sliced, TimeKey(0, 0).sliced, TimeKey(0, 0).overlap) == (
        False,
        False,
        1,
    )


@given(
    st.sampled_from([(10, 10), (10, 5), (12, 4), (10, 4), (6, 4)]),
    st.integers(0, 9), st.integers(-40, 40), st.integers(-60, 60),
)  # fmt: skip
def test_a_record_is_late_for_the_windows_that_are_over(
    window: tuple[int, int], offset: int, place: int, watermark: int
) -> None:
    """The windows of a slice, counted out: some are over, or all of them."""
    size, advance = window
    time = TimeKey(size, advance, offset % advance)
    operator = AggregateOperator(of(SUM, time=time, mode=OutputMode.APPEND))
    at = place * time.slice_us + time.offset_us
    begins = [time.offset_us + n * advance for n in range(-60, 60)]
    ends = [begin + size for begin in begins if begin <= at and at + time.slice_us <= begin + size]
    over = [end <= watermark for end in ends]
    slices = np.array([at])
    if not ends:
        return  # a gap between windows: no record has such a slice
    assert operator.late(slices, watermark).tolist() == [all(over)]
    assert operator.partly_late(slices, watermark).tolist() == [any(over) and not all(over)]


def test_without_a_time_that_expires_nothing_is_late() -> None:
    for time in (None, TimeKey(10, 5, expires=False)):
        operator = AggregateOperator(of(SUM, time=time))
        found = [operator.late, operator.partly_late]
        assert [late(np.array([0, 1]), 10**9).tolist() for late in found] == [[False, False]] * 2
