"""Jobs whose records cost time of a known amount: what runs in their workers, and what it wrote down.

A record costs a *unit* of time or several. A unit is burnt by a loop of a length that was found before
the run, or slept; what it took in the end is measured in the worker, and that is the truth that an
estimator is judged against.
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
"""Where records differ, this share costs so many times as much as the others."""

GROWTH = 2.0
"""Where cost drifts, so many times as much at the end of a run as at its beginning."""

_LINE = struct.Struct("ddddd")
_BITS = 32
_SPREAD = 2654435761
"""Knuth's multiplicative hash: neighbouring numbers are dear or cheap independently."""


@dataclass(frozen=True)
class Cost:
    """Describes the cost of a record.

    Attributes
    ----------
    unit_s : float
        Time of a unit, as wanted.
    loops : int
        Turns of a loop that take `unit_s`; 0: a unit is slept, as by a slow store.
    varied : bool
        Whether records differ and become dearer during the run; a mean unit each at its beginning.
    base_us, run_s : int, float
        When the run begins, microseconds since 1970, and how long it is.
    truth : str
        File that workers append what they did to.
    """

    unit_s: float
    loops: int
    varied: bool
    base_us: int
    run_s: float
    truth: str

    def units(self, number: int, at_us: int) -> float:
        """Return the units of a record, by its number and when it came."""
        if not self.varied:
            return 1.0
        drawn = (number * _SPREAD) % (1 << _BITS) / (1 << _BITS)
        cheap = 1.0 / (1.0 + RARE * (DEAR - 1.0))
        return (DEAR if drawn < RARE else 1.0) * cheap * self.mean_units(at_us)

    def mean_units(self, at_us: float) -> float:
        """Return the mean units of records that come at a moment."""
        if not self.varied:
            return 1.0
        through = min(max((at_us - self.base_us) / 1e6 / self.run_s, 0.0), 1.0)
        return 1.0 + (GROWTH - 1.0) * through

    def spend(self, units: float) -> None:
        """Take the time of so many units."""
        if self.loops:
            for _ in range(round(self.loops * units)):
                pass
        else:
            time.sleep(self.unit_s * units)

    def tell(self, records: int, units: float, began: tuple[float, float]) -> None:
        """Write down what records took since `began` of `clock`."""
        spent = (now_s - began_s for now_s, began_s in zip(self.clock(), began, strict=True))
        os.write(_opened(self.truth), _LINE.pack(time.time(), records, units, *spent))

    def clock(self) -> tuple[float, float]:
        """Return the wall's time, and this thread's own on a core, in seconds."""
        return time.perf_counter(), time.thread_time()


@cache
def _opened(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def loops_of(unit_s: float) -> int:
    """Return how many turns of the loop take so long on a core of this machine."""
    turns, rates = 200_000, []
    for _ in range(5):
        began_s = time.thread_time()
        for _ in range(turns):
            pass
        rates.append(turns / max(time.thread_time() - began_s, 1e-9))
    return max(1, round(max(rates) * unit_s))


@dataclass(frozen=True)
class Truth:
    """Holds the notes of workers, by time.

    Attributes
    ----------
    at_s, records, units, took_s, computed_s : float64[n]
        When, since 1970; how many records; their units; what they took, and what of it on a core.
    """

    at_s: F64
    records: F64
    units: F64
    took_s: F64
    computed_s: F64

    @classmethod
    def read(cls, path: Path) -> Truth:
        """Return what is in a file of `Cost.tell`; nothing where there is none."""
        data = path.read_bytes() if path.exists() else b""
        lines = np.frombuffer(data[: len(data) // _LINE.size * _LINE.size], dtype=np.float64)
        lines = lines.reshape(-1, 5)
        return cls(*lines[np.argsort(lines[:, 0], kind="stable")].T)

    def unit_s(self, at_s: float, within_s: float) -> tuple[float, float] | None:
        """Return what a unit took in the time before a moment, and what of it on a core.

        None where nothing was done in that time.
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
    """Counts the orders of a stock, and takes its time over each."""

    def __init__(self, cost: Cost) -> None:
        self._cost = cost

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._count = handle.getValueState("count", "orders bigint")
        self._began, self._records, self._units = self._cost.clock(), 0, 0.0

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Take in the orders of one stock."""
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
        """Write down what this task took."""
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

    # the annotations would say that it takes anything, where PySpark reads series of them
    worth.__annotations__.clear()
    function = pandas_udf(worth, "double")  # type: ignore[call-overload]
    worths = orders.withColumn("worth", function("number", "at_us", "price"))
    return worths.groupBy("stock").agg(F.sum("worth").alias("worth"), F.count("*").alias("orders"))


@dataclass(frozen=True)
class CostlyJob:
    """A kind of job.

    Attributes
    ----------
    build : callable
        From orders and their cost to the query.
    varied, sleeps : bool
        As `Cost`.
    calm, burst : float
        Records per second that arrive, as units of work per second: 1 is a slot's.
    in_slots : bool
        Whether the slots spend that time, and not what is before them.
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
"""A processor whose records cost the same; an aggregate behind a pandas UDF; a processor whose records
differ and grow dearer; a processor that waits for a slow store at each record."""
