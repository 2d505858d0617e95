"""Logs as people have them, and what is no log: all that is read of each, or the refusal, as recorded."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headgate.core.errors import ConfigError
from headgate.workloads import arrivals, traces
from headgate.workloads.arrivals import ArrivalFeed, RecordedArrivals, TraceArrivals
from headgate.workloads.rates import ConstantRate, ExchangeRate, SineRate
from headgate.workloads.traces import KeyedRows, Trace, column_names, read_rows, trace_of
from headgate_lab.workloads.arrivals import RateArrivals

Recorded = Callable[[str, Iterable[str]], None]
PLAIN = "time,key,n,cost\n3,a,2,1\n0,b,1,0\n1,a,0,3\n7,,4,2\n"
COUNTED: dict[str, Any] = {"count_column": "n", "cost_column": "cost"}
UNKEYED: dict[str, Any] = {"key_column": None}
OWN: dict[str, Any] = {"slice_s": None}
COUNTS: dict[str, Any] = {"count_column": "n", "slice_s": None}

LOGS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": (PLAIN, {}),
    "counted": (PLAIN, COUNTED),
    "counted, slice of its own": (PLAIN, {**COUNTED, "slice_s": None}),
    "slices of 2 s": (PLAIN, {"slice_s": 2.0}),
    "without keys": (PLAIN, {**UNKEYED, "cost_column": "cost"}),
    "without keys, counted": (PLAIN, {**UNKEYED, **COUNTED}),
    "exact": ("time,key\n0.25,a\n5.5,b\n5.125,a\n", OWN),
    "exact, counted, no keys": ("time,n\n0.25,9\n5.5,1\n5.61,3\n", {**UNKEYED, **COUNTS}),
    "a grid of half seconds": ("time,key,n\n10.5,a,1\n11.5,b,2\n11,b,1\n", COUNTS),
    "a grid, slightly off": ("time,key,n\n10.5,a,1\n11.502,b,2\n11,b,1\n", COUNTS),
    "a grid of 1 ms": ("time,key,n\n0.001,a,1\n0.002,b,2\n", COUNTS),
    "a grid below 1 ms": ("time,key,n\n0.0001,a,1\n0.0003,b,2\n", COUNTS),
    "rounded seconds": ("time,key\n1700000000.0000003,a\n1700000004,b\n", OWN),
    "one row": ("time,key,n\n5,a,3\n", COUNTS),
    "one row with a fraction": ("time,key,n\n5.5,a,3\n", COUNTS),
    "milliseconds": ("time,key\n1700000000250,a\n1700000001250,b\n", OWN),
    "microseconds": ("time,key\n1700000000250000,a\n1700000001250000,b\n", OWN),
    "nanoseconds": ("time,key\n1700000000250000000,a\n1700000001250000000,b\n", OWN),
    "the first millisecond": ("time,key\n100000000000,a\n100000001000,b\n", {}),
    "the last second": ("time,key\n99999999999,a\n99999999998,b\n", {}),
    "the first microsecond": ("time,key\n100000000000000,a\n100000001000000,b\n", {}),
    "the first nanosecond": ("time,key\n100000000000000000,a\n100000001000000000,b\n", {}),
    "a unit that is told": ("time,key\n250,a\n1250,b\n", {"time_unit": "ms", "slice_s": None}),
    "a unit that nobody knows": ("time,key\n250,a\n", {"time_unit": "mss"}),
    "a unit like no other": ("time,key\n250,a\n", {"time_unit": "years"}),
    "dates": ("time,key\n2026-01-31 12:00:00,a\n2026-01-31 12:00:02,b\n", OWN),
    "days": ("time,key\n2026-01-01,a\n2026-01-02,b\n", {"slice_s": 86400.0}),
    "dates with a zone": ("time,key\n2026-01-31T12:00:00.5Z,a\n2026-01-31T12:00:02Z,b\n", OWN),
    "a date is missing": ("time,key\n2026-01-31,a\n,b\n", {}),
    "a time is missing": ("time,key\n1,a\n,b\n", {}),
    "a time below 0": ("time,key\n0,a\n-1,b\n", {}),
    "a time beyond all": ("time,key\n0,a\n1e20,b\n", {}),
    "a time that is none": ("time,key\n0,a\nsoon,b\n", {}),
    "parts of records": ("time,key,n\n0,a,1\n0,a,1.5\n", {"count_column": "n"}),
    "counts below 0": ("time,key,n\n0,a,-1\n", {"count_column": "n"}),
    "counts beyond all": ("time,key,n\n0,a,2e18\n", {"count_column": "n"}),
    "counts that are texts": ("time,key,n\n0,a,many\n", {"count_column": "n"}),
    "costs at their ends": ("time,key,c\n0,a,0\n0,a,1e18\n", {"cost_column": "c"}),
    "too long": ("time,key\n0,a\n67108865,b\n", {}),
    "just not too long": ("time,key\n0,a\n67108863,b\n", {"key_groups": 4}),
    "no such column": ("time,key\n0,a\n", {"count_column": "nn"}),
    "a column nearly so": ("time,kee\n0,a\n", {}),
    "two columns of one name": ("time,key,key\n0,a,b\n", {}),
    "a key that is a number": ("time,key\n0,1\n1,2\n2,1\n", {}),
    "the time is the key": ("time\n0\n1\n2\n", {"key_column": "time"}),
    "semicolons": ("time;key\n0;a,b\n1;c\n", {}),
    "tabs": ("time\tkey\n0\ta\n", {}),
    "bars": ("time|key\n0|a\n", {}),
    "no rows": ("time,key\n", {}),
    "nothing": ("", {}),
    "rows of other lengths": ("time,key\n0,a,b\n", {}),
    "0 key groups": (PLAIN, {"key_groups": 0}),
    "all key groups": (PLAIN, {"key_groups": 32767}),
    "too many key groups": (PLAIN, {"key_groups": 32768}),
}  # fmt: skip


def text(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return "[" + ", ".join(f"{each:.9g}" for each in value.ravel().tolist()) + "]"
    return repr(value)


def shown(rows: KeyedRows, groups: int) -> Iterator[str]:
    for field in fields(rows):
        yield f"    {field.name}: {text(getattr(rows, field.name))}"
    if groups > 100 or rows.slices.max() > 1000:
        return
    for speed in (1.0, 4.0):
        trace = trace_of(rows, "the log", groups, speed)
        yield f"    x {speed:g}: {trace.slice_s:g} s, {trace.duration_s:g} s, {trace.total}"
        yield f"    counts {trace.counts.dtype}: {text(trace.counts)}"
        feed = RecordedArrivals.of_rows(rows, groups, speed, np.random.default_rng(1))
        ((at_s, of),) = feed.chunks(np.random.default_rng(2))
        costs = "None" if feed.costs is None else text(feed.costs)
        yield f"    arrivals {feed.key_groups}: {text(at_s)} {text(of)} {costs}"


def test_a_log_is_read_as_recorded(tmp_path: Path, recorded: Recorded) -> None:
    lines = []
    for name, (content, given) in LOGS.items():
        path = tmp_path / "log.csv"
        path.write_text(content)
        groups = given.get("key_groups", 4)
        lines.append(name)
        try:
            lines += shown(read_rows(str(path), **{"key_groups": 4, **given}), groups)
        except ConfigError as error:
            lines.append(f"    {str(error).replace(str(tmp_path), '')}")
    recorded("logs", lines)


def trace(counts: Any, slice_s: float = 1.0) -> str:
    try:
        made = Trace(np.asarray(counts), slice_s)
        return f"{made.duration_s:g} s, {made.total} records"
    except ConfigError as error:
        return str(error)


def test_traces_are_checked_as_recorded(tmp_path: Path, recorded: Recorded) -> None:
    lines = [trace([[1, 2], [3, 4]], slice_s) for slice_s in (0.5, 0.0, -1.0, float("inf"))]
    path = tmp_path / "log.csv"
    rows = KeyedRows(np.array([0, 2]), np.array([1, 0]), None, None, 2.0)
    for speed in (1e-6, 0.9e-6, 1e6, 1.1e6):
        for slices in ([0, 2], [0, 200]):
            one = KeyedRows(np.array(slices), rows.groups, None, None, 2.0)
            try:
                lines.append(f"{speed:g}: {trace_of(one, 'log', 2, speed).duration_s:g} s")
            except ConfigError as error:
                lines.append(f"{speed:g}: {error}")
    for most in (1.0, 0.4, 0.5, 2.0**31 - 1, 2.0**31, 9e9, 1.1e10):
        one = KeyedRows(np.array([0]), np.array([0]), np.array([most]), None, 1.0)
        many = KeyedRows(np.arange(10), np.zeros(10, int), np.full(10, most / 10), None, 1.0)
        for made in (one, many):
            try:
                lines.append(f"{most:g} records: {trace_of(made, 'log', 1, 1.0).total}")
            except ConfigError as error:
                lines.append(f"{most:g} records: {error}")
    for name, raw in (("a.csv", b"x,y\n1,2\n"), ("a.csv.gz", gzip.compress(b"x|y,z\n1|2,3\n"))):
        path = tmp_path / name
        path.write_bytes(raw)
        lines.append(f"{name}: {column_names(str(path))}")
    recorded("traces", lines)


@pytest.mark.parametrize("name", ["rate", "poisson", "sine", "exchange", "trace"])
def test_arrivals_are_as_recorded(name: str, recorded: Recorded) -> None:
    shares = [0.5, 0.0, 0.25, 0.25]
    counts = np.random.default_rng(4).poisson(2.0, (30, 4))
    made = {
        "rate": RateArrivals(ConstantRate(7.0), shares),
        "poisson": RateArrivals(ConstantRate(7.0), shares, poisson=True),
        "sine": RateArrivals(SineRate(5.0, 20.0, 9.0), shares),
        "exchange": RateArrivals(ExchangeRate(1000.0, 0.01), shares),
        "trace": TraceArrivals(Trace(counts, 0.5)),
    }[name]
    feed = ArrivalFeed(made, np.random.default_rng(5))
    lines = [f"{made.key_groups} {made.costs}"]
    for until_s in (0.0, 0.5, 0.5, 3.0, 2.0, 8.0):
        at_s, groups = feed.until(until_s)
        lines.append(f"until {until_s:g}: {text(at_s)} {text(groups)}")
    recorded(f"arrivals-{name}", lines)


def test_a_log_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.csv"
    path.write_text(PLAIN)
    monkeypatch.setattr(traces, "_BYTES_MAX", 10)
    with pytest.raises(ConfigError, match="holds more than 10 bytes; take a part of it"):
        read_rows(str(path), 4)
    monkeypatch.setattr(traces, "_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(traces, "_CELLS_MAX", 1 << 5)
    read_rows(str(path), 4, key_column=None, count_column="n")
    monkeypatch.setattr(traces, "_CELLS_MAX", 31)
    with pytest.raises(ConfigError, match="spans 7 s, too long for 4 key groups"):
        read_rows(str(path), 4)
    monkeypatch.setattr(traces, "_CELLS_MAX", 11)
    path.write_text("time,n\n0,1\n0,1\n1,1\n1,1\n")
    with pytest.raises(ConfigError, match="has 4 rows, too many for 3 key groups"):
        read_rows(str(path), 3, key_column=None, count_column="n")


@pytest.mark.parametrize("shares", [[0.5, 0.4], [1.5, -0.5], [1.0 - 2e-6, 0.0]])
def test_shares_that_make_no_whole_are_refused(shares: list[float]) -> None:
    with pytest.raises(ConfigError, match="shares of the key groups add up to"):
        RateArrivals(ConstantRate(1.0), shares)
    RateArrivals(ConstantRate(1.0), [0.5, 0.5 + 5e-7])


def test_arrivals_that_do_not_fit_are_refused() -> None:
    at_s, groups = np.zeros(2), np.zeros(2, dtype=np.int64)
    for given in ((at_s, groups[:1], None), (at_s, groups, np.ones(3)), (at_s[:1], groups, None)):
        with pytest.raises(ConfigError, match="give one of each for every record"):
            RecordedArrivals(*given, 4)
    rows = KeyedRows(groups, groups, None, np.zeros(2), 1.0)
    with pytest.raises(ConfigError, match="the costs of all records are 0"):
        RecordedArrivals.of_rows(rows, 1, 1.0, np.random.default_rng(0))
    assert arrivals.groups_at(np.array([0.25, 1.0]), np.array([0.0, 0.25, 0.3])).tolist() == [
        0,
        1,
        1,
    ]
