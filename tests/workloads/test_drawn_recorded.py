"""Drawn logs and traces against plain models; rates at their edges as recorded."""

from __future__ import annotations

import gzip
import random
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headgate.core.errors import ConfigError
from headgate.workloads import traces
from headgate.workloads.arrivals import CHUNK, ArrivalFeed, RecordedArrivals, TraceArrivals
from headgate.workloads.rates import parse_rate
from headgate.workloads.traces import (
    KeyedRows,
    Trace,
    groups_of_keys,
    read_rows,
    read_totals,
    resolution_of,
    trace_of,
)

Recorded = Callable[[str, Iterable[str]], None]
WORD = 2**64


def hashed(key: int, key_groups: int) -> int:
    """Return the key group of a key as the mixing of SplitMix64 has it, in whole numbers."""
    word = key * 0x9E3779B97F4A7C15 % WORD
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB % WORD
    return (word ^ word >> 31) % key_groups


@pytest.mark.parametrize("key_groups", [1, 7, 128, 32_767])
def test_keys_are_hashed_by_splitmix(key_groups: int) -> None:
    keys = [*range(50), 2**31, 2**40 + 1, 2**62]
    assert groups_of_keys(keys, key_groups).tolist() == [hashed(k, key_groups) for k in keys]


def drawn_log(dice: random.Random) -> list[dict[str, Any]]:
    """Return the rows of a log as people have them: in any order, some of no record."""
    whole = dice.random() < 0.5
    begin = dice.choice([0, 3, 1_700_000_000])
    return [
        {"time": begin + dice.randint(0, 40) / (1 if whole else 4), "key": dice.choice("abcdef"),
         "n": dice.choice([0, 1, 1, 2, 9]), "cost": dice.choice([0.0, 0.5, 1.0, 4.0])}
        for _ in range(dice.randint(1, 60))
    ] + [{"time": begin, "key": "a", "n": 1, "cost": 1.0}]  # fmt: skip


def written(rows: list[dict[str, Any]], path: Path, delimiter: str) -> str:
    text = delimiter.join(rows[0]) + "\n"
    text += "".join(delimiter.join(str(value) for value in row.values()) + "\n" for row in rows)
    packed = path.suffix == ".gz"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    return str(path)


@pytest.mark.parametrize("seed", range(40))
def test_a_log_is_counted_by_slice_and_key_group(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    rows, groups, slice_s = drawn_log(dice), dice.choice([1, 3, 8]), dice.choice([1.0, 0.5, 4.0])
    keyed, counted, costly = (dice.random() < 0.6 for _ in range(3))
    name = dice.choice(["log.csv", "log.csv.gz"])
    path = written(rows, tmp_path / name, dice.choice(",;\t|"))
    read = read_rows(
        path, groups, key_column="key" if keyed else None, slice_s=slice_s,
        count_column="n" if counted else None, cost_column="cost" if costly else None,
    )  # fmt: skip
    numbers: dict[str, int] = {}
    first = min(row["time"] for row in rows) // slice_s
    expected: Counter[tuple[int, int]] = Counter()
    costs: Counter[int] = Counter()
    turn = 0
    for row in rows:
        number = numbers.setdefault(row["key"], len(numbers))
        at = int(row["time"] // slice_s - first)
        for _ in range(row["n"] if counted else 1):
            group = hashed(number, groups) if keyed else turn % groups
            expected[at, group] += 1
            costs[at] += row["cost"]
            turn += 1
    speed = dice.choice([1.0, 2.5])
    trace = trace_of(read, path, groups, speed)
    assert trace.slice_s == slice_s / speed
    assert trace.total == expected.total()
    found = {
        (int(at), int(group)): int(trace.counts[at, group])
        for at, group in np.argwhere(trace.counts)
    }
    assert found == dict(expected)
    if costly and sum(costs.values()) == 0:
        with pytest.raises(ConfigError, match="the costs of all records are 0"):
            RecordedArrivals.of_rows(read, groups, speed, np.random.default_rng(1))
        return
    arrivals = RecordedArrivals.of_rows(read, groups, speed, np.random.default_rng(1))
    ((at_s, of),) = arrivals.chunks(np.random.default_rng(2))
    assert (np.diff(at_s) >= 0.0).all()
    cells = zip((at_s // trace.slice_s).astype(int).tolist(), of.tolist(), strict=True)
    assert Counter(cells) == expected
    if costly:
        assert arrivals.costs is not None
        mean = sum(costs.values()) / expected.total()
        for at in costs:
            here = arrivals.costs[at_s // trace.slice_s == at]
            assert here.sum() == pytest.approx(costs[at] / mean)


def test_rows_of_no_record_have_no_cost() -> None:
    rows = KeyedRows(np.zeros(2, int), np.zeros(2, int), np.zeros(2), np.ones(2), 1.0)
    with pytest.raises(ConfigError, match="the costs of all records are 0"):
        RecordedArrivals.of_rows(rows, 1, 1.0, np.random.default_rng(0))


@pytest.mark.parametrize("seed", range(4))
def test_a_trace_comes_in_pieces_of_as_many_slices_as_hold_few_enough_records(seed: int) -> None:
    """Whole slices, `CHUNK` records at the most, but for a slice that has more alone."""
    numbers = np.random.default_rng(seed)
    counts = numbers.poisson(numbers.choice([0.0, 90.0, 900.0, 3000.0], (60, 1)), (60, 3))
    counts[0], counts[1] = (
        (CHUNK, 0, 0),
        (seed % 2, 0, 0),
    )  # as many as there may be, or one too many
    pieces = list(TraceArrivals(Trace(counts, 0.5)).chunks(np.random.default_rng(5)))
    begin = 0
    for at_s, groups in pieces:
        totals = counts[begin:].sum(axis=1).cumsum()
        stop = max(int((totals <= CHUNK).sum()), 1)
        here = counts[begin : begin + stop]
        assert np.bincount(groups, minlength=3).tolist() == here.sum(axis=0).tolist()
        assert np.bincount((at_s * 2).astype(int) - begin, minlength=stop).tolist() == (
            here.sum(axis=1).tolist()
        )
        assert (np.diff(at_s) >= 0.0).all()
        begin += stop
    assert begin == len(counts)


def test_a_feed_that_ended_gives_nothing_more_and_never_goes_back() -> None:
    at_s, groups = np.array([0.0, 1.0, 1.0, 4.0]), np.array([3, 1, 2, 0])
    feed = ArrivalFeed(RecordedArrivals(at_s, groups, None, 4), np.random.default_rng(0))
    asked = [feed.until(time_s)[1].tolist() for time_s in (0.0, 0.5, 1.0, 0.5, 3.9, 9.0, 9.0)]
    assert asked == [[3], [], [1, 2], [], [], [0], []]


def test_totals_are_spread_by_shares(tmp_path: Path) -> None:
    totals = [0, 5, 100_000, 7]
    for name, delimiter in (("t.csv", ","), ("t.csv.gz", ";")):
        path = written([{"n": n, "m": 1} for n in totals], tmp_path / name, delimiter)
        trace = read_totals(path, "n", [3, 1, 0], np.random.default_rng(4), slice_s=30.0, speed=4.0)
        assert (trace.slice_s, trace.counts.dtype) == (7.5, np.int32)
        assert trace.counts.sum(axis=1).tolist() == totals
        assert trace.counts[2] / totals[2] == pytest.approx([0.75, 0.25, 0.0], abs=0.01)
        plain = read_totals(path, "m", [1], np.random.default_rng(4))
        assert (plain.slice_s, plain.counts.tolist()) == (60.0, [[1]] * 4)


def test_limits_are_what_may_just_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written([{"time": n, "key": "a"} for n in (0, 63)], tmp_path / "log.csv", ",")
    rows = read_rows(path, 4)
    monkeypatch.setattr(traces, "_CELLS_MAX", 256)
    read_rows(path, 4)
    assert trace_of(rows, path, 4, 1.0).duration_s == 64.0
    with pytest.raises(ConfigError, match=r"plays for 64\.0641 s, too long for 4 key groups"):
        trace_of(rows, path, 4, 0.999)
    monkeypatch.setattr(traces, "_CELLS_MAX", 255)
    with pytest.raises(ConfigError, match="spans 63 s, too long for 4 key groups"):
        read_rows(path, 4)
    monkeypatch.undo()
    times, keys, offsets = 2 * 8, 2 * 1, 2 * 4
    fitting = [size for size in range(60) if fits(path, size, monkeypatch)]
    assert fitting == list(range(times + keys + offsets, 60))
    assert parse_rate(" " * 9_999 + "7").rate_at(0.0) == 7.0
    with pytest.raises(ConfigError, match="is longer than 10,000 characters"):
        parse_rate(" " * 10_000 + "7")


def fits(path: str, size: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    with monkeypatch.context() as patch:
        patch.setattr(traces, "_BYTES_MAX", size)
        try:
            read_rows(path, 4)
        except ConfigError:
            return False
        return True


def test_resolutions(recorded: Recorded) -> None:
    """Of times at exact distances, and just off them."""
    lines = []
    for times in (
        [5.0], [5.5], [0, 2, 4], [0, 2, 5], [0.5, 1.5], [0.5, 1.5, 1.5 + 0.9e-2],
        [0.5, 1.5, 3.5 - 1.1e-2],
        [0, 1 + 0.9e-6], [0, 1 + 1.1e-6], [0.25, 0.25], [0, 0.001], [0, 0.00099], [0, 0.25, 1],
        [0, 0.25, 0.9], [0, 60, 180], [0.5, 60.5, 180.5],
    ):  # fmt: skip
        found = [
            resolution_of(np.array(times, dtype=float), counted=counted)
            for counted in (False, True)
        ]
        lines.append(f"{times}: {found}")
    recorded("resolutions", lines)


RATES = (
    "3.5", "constant(rate=8)", "square(first=4, next=0, period=6s)", "square(first=0,next=4,period=6s)",
    "sine(base=0, amplitude=5, period=8s)", "sine(base=2, amplitude=30)", "steps(4, 2s=0, 5s=7, 6s=1)",
    "steps(0, 3s=2)", "steps(9)", "spike(base=4, factor=3, start=2s, stop=4s)",
    "spike(base=4, factor=0, start=0s, stop=3s)", "exchange(speed=1000, load=0.01)", "exchange()",
)  # fmt: skip


def test_rates_at_their_edges(recorded: Recorded) -> None:
    """Where a rate changes, a hair before and after; and the first events, many of them later."""
    lines = []
    edges = np.array([0.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.2, 8.0, 12.0, 14.4, 300.0, 600.0, 3600.0])
    for text in RATES:
        rate = parse_rate(text)
        for name, at_s in (
            ("before", np.maximum(edges - 1e-6, 0.0)),
            ("at", edges),
            ("after", edges + 0.25),
        ):
            if name == "at" and text.startswith(("sine", "exchange")):
                continue  # the last digit of a sine is the machine's
            rates = [float(f"{value:.7g}") for value in rate.rate_at(at_s)]
            lines += [f"{text} {name}: {rates} {rate.count(at_s).tolist()}"]
        events = rate.time_of([0, 1, 2, 7, 8, 11, 12, 19, 100, 1_000_000])
        lines.append(f"{text} events: {[float(f'{value:.9g}') for value in events]}")
    recorded("rates", lines)


@pytest.mark.parametrize("shape", ["{0}", "square(first={0}, next=9, period=7s)",
                                   "sine(base={0}, amplitude=3, period=7s)",
                                   "steps({0}, 1500ms=9.1, 2s=0.3)"])  # fmt: skip
def test_a_count_is_that_of_the_events_due_to_the_last_bit(shape: str) -> None:
    """At the time of an event and just before, where a product of rate and time is off by a rounding."""
    for per_s in range(1, 60):
        rate = parse_rate(shape.format(per_s))
        due_s = rate.time_of(np.arange(300))
        for at_s in (due_s[:100], np.nextafter(due_s[:100], 0.0)):
            assert (rate.count(at_s) == np.searchsorted(due_s, at_s, side="right")).all()


@pytest.mark.parametrize("text", RATES)
def test_times_and_events_may_be_numbers_of_any_kind(text: str) -> None:
    """Of few bits too: what is computed of them has 64."""
    rate, at_s = parse_rate(text), [0, 1, 7, 100]
    wide = np.array(at_s, dtype=np.float64)
    for kind in (np.float32, np.int16, np.uint8, np.int64):
        few = np.array(at_s, dtype=kind)
        assert rate.rate_at(few).dtype == rate.time_of(few).dtype == np.float64
        assert rate.rate_at(few).tolist() == rate.rate_at(wide).tolist() == list(rate.rate_at(at_s))
        assert rate.time_of(few).tolist() == rate.time_of(wide).tolist() == list(rate.time_of(at_s))
        assert rate.count(few).tolist() == rate.count(wide).tolist() == list(rate.count(at_s))
