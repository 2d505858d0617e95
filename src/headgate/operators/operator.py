"""Defines the port of an operator: the methods that a slot's step calls, whatever its kind."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.operators.spec import OperatorSpec, TimeKey
from headgate.operators.step import SlotStep, slice_starts
from headgate.tables.ports import Table, TableLayout

I64 = npt.NDArray[np.int64]


class Layout(Protocol):
    """Gives every layout of an operator its common attribute."""

    @property
    def table(self) -> TableLayout:
        """The shape of a row."""


class Operator(Protocol):
    """Runs one spec over the key groups of a slot; holds no state of its own.

    `serve` calls `late`, `partly_late` and `holds_us` with all rows of a step, and `run` once. What
    only some kinds do has the answer of the others here.
    """

    spec: OperatorSpec
    layout: Layout

    @property
    @abstractmethod
    def time(self) -> TimeKey | None:
        """The event time of arriving records; None where they have none."""

    @property
    @abstractmethod
    def expires(self) -> bool:
        """Return whether records can be late."""

    @property
    def shared(self) -> bool:
        """Return whether every slot gets every row, and each key group all of its slot's rows."""
        return False

    @property
    def inputs(self) -> int:
        """Return the number of inputs."""
        return 1

    @property
    def input_column(self) -> str:
        """The column that says which input a row came from, from 0 on; there, if there are several."""
        return ""

    @property
    def waits_for_time(self) -> bool:
        """Return whether a result is emitted when its time is over, under the name `TIME`."""
        return False

    @property
    def shows_all(self) -> bool:
        """Return whether every key group emits all its results in every step, held or not."""
        return False

    @abstractmethod
    def input_schema(self) -> pa.Schema:
        """Return the schema of arriving columns."""

    def initial_schema(self) -> pa.Schema | None:
        """Return the schema of an initial state; None where there can be none."""
        return None

    @abstractmethod
    def schema(self) -> pa.Schema:
        """Return the schema of the output."""

    def times(self, arriving: pa.Table) -> I64:
        """Return the time by which each arriving record is judged, as `late` takes it."""
        return slice_starts(self.time, arriving)

    @abstractmethod
    def late(self, times_us: I64, watermark_us: I64, /) -> npt.NDArray[np.bool_]:
        """Return which records are late: all that they belong to is out at the watermark."""

    def partly_late(self, times_us: I64, watermark_us: I64, /) -> npt.NDArray[np.bool_]:
        """Return which records are late for some of their windows only."""
        del watermark_us
        return np.zeros(len(times_us), dtype=np.bool_)

    def holds_us(self, watermark_us: int) -> int:
        """Return the time before which no more output comes, once a group stands at a watermark."""
        return watermark_us

    def rehearse(self) -> bool:
        """Prepare everything that a batch needs, and return True; False where only rows can do that."""
        return False

    def merged(self, rows: pa.Table) -> pa.Table:
        """Return arriving rows merged among themselves, one for each entry that they belong to.

        Only asked of operators whose spec is not `unsplittable`; by default they are left as they are.
        """
        return rows

    def entries(self, table: Table, emitted_us: int, part: int = 0) -> pa.RecordBatch:
        """Return the entries of a key group, for another engine.

        `emitted_us`: the group's watermark. `part`: the side of a join, the number of a processor's
        variable.
        """
        raise NotImplementedError

    @abstractmethod
    def run(
        self,
        step: SlotStep,
        chosen: pa.Table,
        starts: I64,
        watermarks_us: Mapping[int, int],
        initial: tuple[pa.Table, I64] | None = None,
    ) -> pa.RecordBatch:
        """Serve a step's rows, commit the groups that changed, and return the output.

        Parameters
        ----------
        chosen : pyarrow.Table
            Rows ``starts[g]:starts[g + 1]`` of it are key group g's, where the operator is not shared.
        watermarks_us : mapping of int to int    Watermark of every group that is served.
        initial : (pyarrow.Table, int64[groups + 1]) or None
            The initial state, as `chosen` and `starts`; None where the operator has none, and in all
            steps but the first.
        """
