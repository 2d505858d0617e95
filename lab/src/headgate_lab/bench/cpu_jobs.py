"""Defines jobs whose records take a known time, and reads the times that their workers measured.

A record takes one or more *units* of time. A unit is a loop of calibrated length, or a sleep. The worker
measures the actual time, which is the truth against which an estimator is judged.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

F64 = npt.NDArray[np.float64]

RARE, DEAR = 0.01, 100.0
"""With varied records, share of the expensive ones, and their cost relative to the others."""

GROWTH = 2.0
"""With varied records, mean cost at the end of a run relative to its beginning."""

_LINE = struct.Struct("ddddd")
_BITS = 32
_SPREAD = 2654435761
"""Knuth's multiplicative hash, so that the costs of neighbouring numbers are unrelated."""


@dataclass(frozen=True)
class Cost:
    """Describes the cost of a record.

    Attributes
    ----------
    unit_s : float
        Intended time of a unit.
    loops : int
        Iterations of the loop that take `unit_s`; 0: a unit is a sleep, as with a slow store.
    varied : bool
        Whether records differ and their mean cost grows during the run, from one unit on.
    base_us, run_s : int, float
        Begin of the run, microseconds since 1970, and its length.
    truth : str
        File to which workers append their measurements.
    """

    unit_s: float
    loops: int
    varied: bool
    base_us: int
    run_s: float
    truth: str

    def units(self, number: int, at_us: int) -> float:
        """Return the units of a record, by its number and time."""
        if not self.varied:
            return 1.0
        drawn = (number * _SPREAD) % (1 << _BITS) / (1 << _BITS)
        cheap = 1.0 / (1.0 + RARE * (DEAR - 1.0))
        return (DEAR if drawn < RARE else 1.0) * cheap * self.mean_units(at_us)

    def mean_units(self, at_us: float) -> float:
        """Return the mean units of the records at a time."""
        if not self.varied:
            return 1.0
        through = min(max((at_us - self.base_us) / 1e6 / self.run_s, 0.0), 1.0)
        return 1.0 + (GROWTH - 1.0) * through

    def spend(self, units: float) -> None:
        """Spend the time of some units."""
        if self.loops:
            for _ in range(round(self.loops * units)):
                pass
        else:
            time.sleep(self.unit_s * units)

    def tell(self, records: int, units: float, began: tuple[float, float]) -> None:
        """Append the times that records took since `began`, a result of `clock`."""
        spent = (now_s - began_s for now_s, began_s in zip(self.clock(), began, strict=True))
        os.write(_opened(self.truth), _LINE.pack(time.time(), records, units, *spent))

    def clock(self) -> tuple[float, float]:
        """Return wall-clock time and this thread's CPU time, in seconds."""
        return time.perf_counter(), time.thread_time()


@cache
def _opened(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def loops_of(unit_s: float) -> int:
    """Return how many iterations of the loop take `unit_s` on a core of this machine."""
    turns, rates = 200_000, []
    for _ in range(5):
        began_s = time.thread_time()
        for _ in range(turns):
            pass
        rates.append(turns / max(time.thread_time() - began_s, 1e-9))
    return max(1, round(max(rates) * unit_s))


@dataclass(frozen=True)
class Truth:
    """Holds the workers' measurements, by time.

    Attributes
    ----------
    at_s, records, units, took_s, computed_s : float64[n]
        Time since 1970; number of records; their units; wall-clock time and CPU time that they took.
    """

    at_s: F64
    records: F64
    units: F64
    took_s: F64
    computed_s: F64

    @classmethod
    def read(cls, path: Path) -> Truth:
        """Return the content of a file of `Cost.tell`; nothing if it does not exist."""
        data = path.read_bytes() if path.exists() else b""
        lines = np.frombuffer(data[: len(data) // _LINE.size * _LINE.size], dtype=np.float64)
        lines = lines.reshape(-1, 5)
        return cls(*lines[np.argsort(lines[:, 0], kind="stable")].T)

    def unit_s(self, at_s: float, within_s: float) -> tuple[float, float] | None:
        """Return the wall-clock and CPU time of a unit, in the period `within_s` before a time.

        None if no records were served in that period.
        """
        inside = (self.at_s > at_s - within_s) & (self.at_s <= at_s)
        units = float(self.units[inside].sum())
        if not units:
            return None
        return (
            float(self.took_s[inside].sum()) / units,
            float(self.computed_s[inside].sum()) / units,
        )


class Heavy(StatefulProcessor):
    """Counts the orders of a stock, and spends the cost of each."""

    def __init__(self, cost: Cost) -> None:
        self._cost = cost

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._count = handle.getValueState("count", "orders bigint")
        self._began, self._records, self._units = self._cost.clock(), 0, 0.0

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Count the orders of one stock."""
        cost, before = self._cost, self._count.get() or (0,)
        count = 0
        for row in rows:
            units = cost.units(row.number, row.at_us)
            cost.spend(units)
            count, self._units = count + 1, self._units + units
        self._records += count
        self._count.update((before[0] + count,))
        yield Row(stock=key[0], orders=before[0] + count)

    def close(self) -> None:
        """Append the measurements of this task."""
        if self._records:
            self._cost.tell(self._records, self._units, self._began)


def _processor(orders: DataFrame, cost: Cost) -> DataFrame:
    return orders.groupBy("stock").transformWithState(
        statefulProcessor=Heavy(cost),
        outputStructType="stock int, orders bigint",
        outputMode="Update",
        timeMode="None",
    )


def _function(orders: DataFrame, cost: Cost) -> DataFrame:
    def worth(number: Any, at_us: Any, price: Any) -> Any:
        began = cost.clock()
        units = [cost.units(*pair) for pair in zip(number, at_us, strict=True)]
        for one in units:
            cost.spend(one)
        cost.tell(len(units), sum(units), began)
        return price * 1.01

    # PySpark would infer the kind of function from the annotations, and cannot with `Any`
    worth.__annotations__.clear()
    function = pandas_udf(worth, "double")  # type: ignore[call-overload]
    worths = orders.withColumn("worth", function("number", "at_us", "price"))
    return worths.groupBy("stock").agg(F.sum("worth").alias("worth"), F.count("*").alias("orders"))


@dataclass(frozen=True)
class CostlyJob:
    """Describes a kind of job.

    Attributes
    ----------
    build : callable
        Makes the query from orders and their cost.
    varied, sleeps : bool
        See `Cost`; a job that sleeps has no loop.
    calm, burst : float
        Arriving work in calm times and in a burst, in units of one slot's capacity.
    in_slots : bool
        Whether the slots spend the time, or the operators before them.
    """

    build: Callable[[DataFrame, Cost], DataFrame]
    varied: bool = False
    sleeps: bool = False
    calm: float = 0.3
    burst: float = 1.1
    in_slots: bool = True


JOBS: Mapping[str, CostlyJob] = {
    "processor": CostlyJob(_processor),
    "udf": CostlyJob(_function, in_slots=False),
    "varied": CostlyJob(_processor, varied=True, burst=0.9),
    "store": CostlyJob(_processor, sleeps=True, calm=0.8, burst=3.2),
}
"""A processor whose records cost the same; an aggregate after a pandas UDF; a processor whose records
differ and become more expensive; a processor that waits for a slow store at each record."""
