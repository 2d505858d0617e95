"""Words and numbers of every kind, and what becomes of each: the value, its text, or the refusal."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest

from headgate.core import duration, frames, location, near, size, stores
from headgate.core.assignment import Assignment, kept_split, rescale, spread
from headgate.core.call import Call
from headgate.core.errors import HeadgateError, NotReady, nearest
from headgate.core.input import escaped, finite, host_and_port, read_json, read_toml, shown, whole
from headgate.core.intents import intent_of, utility_of
from headgate.core.slo import Slo, parse_slo
from headgate.core.utility import (
    Custom,
    Intent,
    Knee,
    Linear,
    Lognormal,
    Metric,
    Piecewise,
    Step,
    Utility,
    shape_named,
)

Recorded = Callable[[str, Iterable[str]], None]


def told(do: Callable[[], Any]) -> str:
    """Return a value as text, or why there is none."""
    try:
        value = do()
    except (HeadgateError, ValueError, ArithmeticError) as error:
        return f"{type(error).__name__}: {error}"
    return f"{value:.9g}" if isinstance(value, float) else repr(value)


DURATIONS = (
    "1 s", "1s", "0 s", "1.5 min", "90 seconds", "2h", "1 day", "1 week", "1 month", "5 ms", "1 us",
    "1 ns", "1 minute 30 seconds", "1 h 2 min 3 s", "-1 s", "1", "s", "", "1 x", "1 secnd", "1e3 s",
    "1 s 1 s", "100 years", "36525 days", "36526 days", "1 hour, 5 min", "1.2.3 s", "½ s", "1 S",
    "1 interval", "interval 1 s", "interval '1' second", "x" * 1001, "1 s" + " " * 1000, "inf s",
)  # fmt: skip
SIZES = (
    "1", "1 B", "1 KB", "1.5 MB", "2GB", "1 kb", "1 TB", "1 PB", "1 KiB", "1 MiB", "0", "-1 MB",
    "1 XB", "MB", "", "1e3 MB", "1000000 TB", "1000001 TB", "nan", "1..5 MB", "5 GiB",
)  # fmt: skip
SLOS = (
    "mean < 1 s over 1 s", "p99 < 300 ms over 10 s", "p99.9 < 2 min over 1 h", "p50<1s over 1s",
    "max < 1 s over 1 s", "mean < 1 s", "mean < 1 over 1 s", "p100 < 1 s over 1 s", "p0 < 1 s over 1 s",
    "juice >= 0.9", "juice >= 1", "juice >= 1.1", "juice >= 0", "throughput >= 100/s",
    "throughput >= 6000 / min", "throughput >= 5", "throughput >= 100/s over 1 min", "juce >= 0.9",
    "operator join-0: mean < 1 s over 1 s", "each operator: p95 < 1 s over 1 s",
    "end-to-end: mean < 1 s over 1 s in 95 % of windows", "mean < 1.5 s over 90 s in 99.9 % of windows",
    "mean < 1 s over 1 s in 100 % of windows", "mean < 1 s over 1 s in 101 % of windows",
    "mean < 1 s over 1 s in 0 % of windows", "each operator: juice >= 0.5", "nobody: mean < 1 s over 1 s",
    "mean < 876600 h over 1 s", "mean < 876601 h over 1 s", "mean < 1 us over 1 us",
    "mean < 1 s over 1 s of join-0", "mean < 1 s over 1 s of each operator",
    "mean < 1 s over 1 s end to end",
    "mean < 1 s over 1 s in 99 %", "mean < 1 s over 1 s for 95% of windows", "mean < 1 s over 1 s, 95 %",
    "mean < 1 s over 1 s in 0 %", "mean < 1 s over 1 s in 101 %", "", "mean", "mean <", "< 1 s",
    "mean < 1 s over", "mean > 1 s over 1 s", "juice < 0.9", "x" * 301, "mean < 0 s over 1 s",
    "mean < 100 years over 1 s", "mean < 101 years over 1 s", "mean < 1 s over 0.1 us",
)  # fmt: skip
CALLS = (
    "a", "a()", "a(1)", "a(1, 2)", "a(y=1)", "a(1, y=2)", "a(x=1, 2)", "a(x=1, x=2)", "a(1, x=2)",
    "a(1, 2, 3)", "a(z=1)", "a(", "a)", "a(1", "b", "ab", "", "a((1))", "a(1,)", " a ( 1 ) ", "a(x=)",
)  # fmt: skip
PLACES = (
    "/a/b", "a/b", "file:/a/b", "file:///a b/c", "file://host/a", "hdfs://n:1/a", "hdfs://n/a/b/",
    "s3://b/k", "s3a://b/k/l/", "s3://b", "s3:///k", "gs://b/k", "abfss://c@a.dfs.core.windows.net/k",
    "abfss://c/k", "dbfs:/a", "http://a/b", "", " ", "s3:/b/k", "/a\0b", "~/a", "S3://b/k", "hdfs:///a",
)  # fmt: skip


def test_words_are_read_as_recorded(recorded: Recorded) -> None:
    lines: list[str] = []

    def each(name: str, words: Iterable[Any], do: Callable[[Any], Any]) -> None:
        for word in words:
            lines.append(f"{name} {str(word)[:60]!r}: {told(lambda word=word: do(word))[:300]}")

    each("duration", DURATIONS, duration.parse_duration_s)
    each("duration or 0", ("0 s", "-1 s", "0"), lambda w: duration.parse_duration_s(w, zero=True))
    each("size", SIZES, size.bytes_or_size)
    each(
        "bytes", (0, 1, 999, 1000, 1024, 1500, 10**6, 123456789, 10**12, 10**18), size.format_bytes
    )
    each("SLO", SLOS, lambda w: (str(parse_slo(w)), dataclasses.astuple(parse_slo(w))))
    each("operator", SLOS, lambda w: parse_slo(w).operator)
    each("quantile", SLOS[1:4], lambda w: parse_slo(w).is_latency and parse_slo(w).quantile)
    each("intent", SLOS, lambda w: intent_of(parse_slo(w)))
    each("call", CALLS, lambda w: Call.parse(w, "law", ("a", "bb"), "a(1)").values(["x", "y"]))
    each("named", CALLS, lambda w: Call.parse(w, "law", ("a", "bb"), "a(1)").values(["x"], ["y"]))
    each("path", PLACES, location.local_path)
    each("store", PLACES, stores.store_url)
    each("whole", ("5", "-1", "12", "13", "4", "1.0", "٥", ""), lambda w: whole(w, "it", 5, 12))
    each("finite", (0.5, 1.0, 1.1, -0.1, math.nan, math.inf), lambda w: finite(w, "it", 0.0, 1.0))
    each("host", ("a:1", "a", ":1", "a:0", "a:65535", "a:65536", "[::1]:5", "::1:5", "a:x", "a b:1"),
         lambda w: host_and_port(w, "--listen"))  # fmt: skip
    each("JSON", ("{", "[1, 2.5]", '{"a": NaN}', "1e999", '{"a": 1, "a": 2}', "[" * 65 + "]" * 65,
                  "[" * 64 + "]" * 64, '"\\ud800"', "1" * 400, "null", "12345678901234567890"),
         lambda w: read_json(w.encode(), "it"))  # fmt: skip
    each("TOML", ("a = 1", "a = ", "a = nan", "a = 1\na = 2", "a = 1979-05-27", "[a]\nb = [1, 2]"),
         lambda w: read_toml(w.encode(), "it"))  # fmt: skip
    each(
        "shown",
        ("a\nb", "\x1b[0m", "x" * 299, "x" * 300, "x" * 301, "x" * 400, "é", "\u202e"),
        shown,
    )
    each(
        "shown 20",
        ("x" * 20, "x" * 21, "abcdefghijklmnopqrstuvwxyz0123456789"),
        lambda w: shown(w, 20),
    )
    each("escaped", ("\x7f", "\u2028", "a\tb", "\ud800"), escaped)
    each(
        "nearest",
        ("colour", "colors", "", "zzz", "COLOR", "c"),
        lambda w: nearest(w, ("color", "size")),
    )
    recorded("words", lines)


SHAPES = [
    Knee(), Linear(), Linear(2.0), Step(), Step(0.5), Lognormal(), Lognormal(0.25),
    Piecewise(((1.0, 1.0), (2.0, 1.0), (2.0, 0.5), (5.0, 0.0))),
]  # fmt: skip


def values_of(intent: Intent) -> Iterator[str]:
    t = intent.threshold
    for value in (0.0, t / 2, t * 0.999, t, t * 1.001, 1.5 * t, 2 * t, 3 * t, 10 * t, math.inf):
        yield f"    {value:.6g}: {told(lambda value=value: intent.share(value))} {intent.met(value)}"


def test_utilities_are_as_recorded(recorded: Recorded) -> None:
    lines: list[str] = []
    for metric, shape in itertools.product(Metric, SHAPES):
        threshold = {"latency": 2.0, "juice": 0.5}.get(metric.value, 100.0)
        if isinstance(shape, Piecewise) and metric.value != "latency":
            continue
        lines.append(f"{metric.value} {shape}")
        lines += values_of(Intent(metric, threshold, shape))
    made = [
        lambda: Linear(0.0), lambda: Linear(-1.0), lambda: Lognormal(0.0), lambda: Step(1.0),
        lambda: Step(-0.1), lambda: Step(0.999), lambda: Piecewise(()), lambda: shape_named("kne"),
        lambda: Piecewise(((2.0, 1.0), (1.0, 0.0))), lambda: Piecewise(((math.nan, 1.0),)),
        lambda: shape_named("zzz"), lambda: Intent(Metric.JUICE, 1.5), lambda: Intent(Metric.JUICE, 1.0),
        lambda: Intent(Metric.LATENCY, 0.0), lambda: Intent(Metric.LATENCY, 1.0, Knee(), 100.0),
        lambda: Intent(Metric.LATENCY, 1.0, Knee(), 0.0), lambda: Intent(Metric.JUICE, 0.5, Knee(), 50.0),
        lambda: Intent(Metric.LATENCY, 1.0, Knee(), 99.9), lambda: Utility(0.0, ()),
        lambda: Utility(1.0, ()),
        lambda: Intent(Metric.LATENCY, 1.0, Custom(lambda v: 1.0 if v <= 1.0 else 0.5)),
        lambda: Intent(Metric.LATENCY, 1.0, Custom(lambda v: 1.0 if v <= 1.0 else v / 1e4)),
        lambda: Intent(Metric.LATENCY, 1.0, Custom(lambda v: 0.5)),
        lambda: Intent(Metric.LATENCY, 1.0, Custom(lambda v: math.nan)),
        lambda: Intent(Metric.LATENCY, 1.0, Custom(lambda v: 1.0 / (v - 10.0))),
        lambda: Intent(Metric.LATENCY, 1.0, Piecewise(((1.0, 0.9),))),
        lambda: Intent(Metric.LATENCY, 1.0, Piecewise(((1.0, 1.0), (2.0, 1.5)))),
        lambda: Intent(Metric.LATENCY, 1.0).share(math.nan),
        lambda: Custom(lambda v: 1.5).share(1.0, 1.0, falls=True),
    ]  # fmt: skip
    lines += [told(make).split(" at 0x")[0] for make in made]
    both = utility_of([parse_slo("mean < 1 s over 1 s"), parse_slo("juice >= 0.5")], 10.0, Linear())
    for values in ((0.5, 0.9), (1.5, 0.9), (1.5, 0.25), (3.0, 0.0)):
        lines.append(f"{values}: {both.current(values):.6g} {both.met(values)}")
    with pytest.raises(NotReady):
        both.current((math.nan, 0.5))
    recorded("utilities", lines)


def test_assignments_are_as_recorded(recorded: Recorded) -> None:
    dice = random.Random(3)
    lines: list[str] = []
    for slots, groups in ((1, 1), (2, 5), (5, 5), (3, 16)):
        lines.append(f"spread {slots} {groups}: {spread(slots, groups)}")
    for _ in range(12):
        old = dice.choice([2, 3, 4])
        current = Assignment(tuple(dice.randrange(old) for _ in range(9)), old, dice.randrange(5))
        for slots in (1, 2, 3, 5, 9):
            new = rescale(current, slots)
            lines.append(f"{current.slot_of} to {slots}: {new} {current.moved(new)}")
    split = Assignment((0, 1, 2, 0), 3, 4, {0: (0, 2), 2: (2, 1, 0)})
    for slot in range(3):
        parts = (split.groups_of(slot), split.shares_at(slot), split.waiting_at(slot))
        lines.append(f"slot {slot}: {parts}")
    for group in range(4):
        lines.append(f"group {group}: {split.shares_of(group)} {split.key_groups}")
        lines += [
            f"    {told(lambda g=group, s=share: split.share_key(g, s))}" for share in range(3)
        ]
    for changes in ({1: 2}, {0: 1, 3: 2}, {4: 0}, {0: 3}, {-1: 0}, {}):
        lines.append(f"remap {changes}: {told(lambda c=changes: split.remap(c))}")
    for slots in (1, 2, 3, 4):
        lines.append(
            f"kept for {slots}: {told(lambda s=slots: kept_split(split.split, (0, 1, 0, 0), s))}"
        )
    for given in (((0, 2), 2), ((0, -1), 2), ((), 1), ((0, 0), 0), ((0, 1), 3)):
        lines.append(f"{given}: {told(lambda g=given: Assignment(*g))}")
    for shares in ({0: (0,)}, {0: (0, 0)}, {0: (1, 0)}, {5: (0, 1)}, {0: (0, 9)}, {0: ()}):
        lines.append(f"{shares}: {told(lambda s=shares: Assignment((0, 1, 2), 3, 0, s))}")
    recorded("assignments", lines)


def test_rows_that_are_near_are_as_recorded(recorded: Recorded) -> None:
    rng = np.random.default_rng(5)
    lines: list[str] = []
    for _ in range(30):
        want = rng.choice([0.0, 1.0, 1.05, 1.1, 1.2, -1.0], size=(rng.integers(0, 6), 2))
        got = rng.choice([0.0, 1.0, 1.05, 1.1, 1.2, -1.0], size=(rng.integers(0, 6), 2))
        for relative, floor in ((0.06, 0.0), (0.0, 0.1), (0.01, 0.01)):
            tolerance = np.full(2, relative), np.full(2, floor)
            lines.append(f"{near.unmatched(want, got, *tolerance)}")
    recorded("near", lines)


def test_frames_of_headgate_are_told_from_others() -> None:
    assert frames.is_headgates(frames.__file__)
    assert not frames.is_headgates(__file__)
    assert frames.users_level() >= 1
    assert isinstance(Slo("mean", 1.0, 1.0), Slo)
