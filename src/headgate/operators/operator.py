"""Defines the port of operators: the methods that a slot calls in a step."""

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
    """Defines the attribute that the row layouts of all operators have."""

    @property
    def table(self) -> TableLayout:
        """The shape of a row."""


class Operator(Protocol):
    """Runs one spec over the key groups of a slot; holds no state of its own.

    `serve` calls `late`, `partly_late` and `run` with all rows of a step. Methods that only some
    kinds of operators need have a default here.
    """

    spec: OperatorSpec
    layout: Layout

    @property
    @abstractmethod
    def time(self) -> TimeKey | None:
        """Event time of arriving records; None if they have none."""

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
        """Column with the number of a row's input, from 0; only used if there are several inputs."""
        return ""

    @property
    def waits_for_time(self) -> bool:
        """Return whether results wait for the end of their window; `TIME` then has slice starts."""
        return False

    @property
    def shows_all(self) -> bool:
        """Return whether a step emits all results of all key groups, also of groups on hold."""
        return False

    @abstractmethod
    def input_schema(self) -> pa.Schema:
        """Return the schema of arriving columns."""

    def initial_schema(self) -> pa.Schema | None:
        """Return the schema of an initial state; None if the operator takes none."""
        return None

    @abstractmethod
    def schema(self) -> pa.Schema:
        """Return the schema of the output."""

    def times(self, arriving: pa.Table) -> I64:
        """Return the time of each arriving record that `late` compares with the watermark."""
        return slice_starts(self.time, arriving)

    @abstractmethod
    def late(self, times_us: I64, watermark_us: I64, /) -> npt.NDArray[np.bool_]:
        """Return a mask of late records: the watermark has passed all their windows."""

    def partly_late(self, times_us: I64, watermark_us: I64, /) -> npt.NDArray[np.bool_]:
        """Return a mask of records that are late for some of their windows, not for all."""
        del watermark_us
        return np.zeros(len(times_us), dtype=np.bool_)

    def holds_us(self, watermark_us: int) -> int:
        """Return the least event time of later output, when a group's watermark is `watermark_us`."""
        return watermark_us

    def rehearse(self) -> bool:
        """Prepare all that a batch needs, and return True; False if only served rows can prepare it."""
        return False

    def merged(self, rows: pa.Table) -> pa.Table:
        """Merge arriving rows with each other; return one row per entry.

        Only called if the spec is not `unsplittable`. By default, rows stay as they are.
        """
        return rows

    def entries(self, table: Table, emitted_us: int, part: int = 0) -> pa.RecordBatch:
        """Return the entries of a key group, for another engine.

        `emitted_us`: the group's watermark. `part`: the side of a join, or the number of a processor's
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
            Rows to serve; ``starts[g]:starts[g + 1]`` are key group g's, unless the operator is shared.
        watermarks_us : mapping of int to int    Watermark of every group that is served.
        initial : (pyarrow.Table, int64[groups + 1]) or None
            Initial state, in the form of `chosen` and `starts`; None without one, and in all steps after
            the first.
        """
