"""NEXMark's Q5 and Q7 over late and disordered events: the answer is that of all events but the
dropped ones, and every dropped one was late.

A window is late for a record when it is out already, that is, when its end is at or before the
watermark of the batch before: Spark judges lateness so, too.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import answers
import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession

import headgate as hg
from headgate.checkpoint.checkpoint import Checkpoint
from headgate.spark.worker.payloads import read_table
from headgate.workloads.rates import ConstantRate
from headgate_demo.generators import nexmark
from headgate_demo.spark import sources
from headgate_demo.spark.queries import q5, q7

EVENTS, BATCH, PER_S = 2_000, 500, 50
BASE_US = 1_700_000_000_000_000
SECOND_US = 1_000_000
SIZE_US, WATERMARK_US = 10 * SECOND_US, 4 * SECOND_US
SEEDS, QUICK = 20, 1

Bid = tuple[int, int, int, int, int]
"""(batch, auction, bidder, price, event time in us)."""


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    sources.register(spark)
    return spark


def options(seed: int) -> dict[str, str]:
    return {
        "seed": str(seed),
        "rate": str(PER_S),
        "events": str(EVENTS),
        "batch_rows": str(BATCH),
        "base": str(BASE_US),
        "prob_delayed": "0.3",
        "delay_ms": "40000",
    }


def bids(seed: int) -> list[Bid]:
    config = nexmark.NexmarkConfig(
        seed=seed, rate=ConstantRate(PER_S), prob_delayed=0.3, delay_ms=40_000
    )
    table = nexmark.events(config, 0, EVENTS, BASE_US, ["event_type", "bid"])
    kinds = table.column("event_type").to_numpy()
    bid = table.column("bid")
    fields = [bid.field(n).to_numpy(zero_copy_only=False) for n in ("auction", "bidder", "price")]
    times = bid.field("dateTime").cast("int64").to_numpy(zero_copy_only=False)
    return [
        (int(i) // BATCH, *(int(f[i]) for f in fields), int(times[i]))
        for i in np.flatnonzero(kinds == 2)
    ]


def ends(time_us: int, advance_us: int) -> list[int]:
    """Return the ends of the windows that hold an event."""
    last = time_us - time_us % advance_us
    return [start + SIZE_US for start in range(last, time_us - SIZE_US, -advance_us)]


class Expected:
    """What a dictionary makes of the events.

    Attributes
    ----------
    watermark_us : list of int
        Of each batch, and the final one.
    dropped : Counter of (slice start or auction ..., window end)
    """

    def __init__(self, seed: int, advance_us: int, slice_us: int) -> None:
        self.advance_us, self.slice_us = advance_us, slice_us
        self.bids = bids(seed)
        latest, self.watermark_us = 0, [0]
        for batch in range(EVENTS // BATCH):
            latest = max([latest, *(b[4] for b in self.bids if b[0] == batch)])
            self.watermark_us.append(latest // 1000 * 1000 - WATERMARK_US)
        self.pairs = [(bid, end) for bid in self.bids for end in ends(bid[4], advance_us)]

    def late(self, bid: Bid, end: int) -> bool:
        """Whether the window was out when the record came: by then the batch before had ended."""
        return bid[0] > 0 and end <= self.watermark_us[bid[0] - 1]

    @property
    def served(self) -> list[tuple[Bid, int]]:
        """The pairs whose window is out at the end, without the dropped ones."""
        final = self.watermark_us[-1]
        return [(bid, end) for bid, end in self.pairs if end <= final and not self.late(bid, end)]

    def q5(self) -> set[tuple[int, int, int]]:
        counts = Counter((end, bid[1]) for bid, end in self.served)
        best: dict[int, tuple[int, int]] = {}
        for (end, auction), n in counts.items():
            best[end] = max(best.get(end, (0, 0)), (n, -auction))
        return {(end, -top[1], top[0]) for end, top in best.items()}

    def q7(self) -> set[tuple[int, int, int, int]]:
        best: dict[int, tuple[int, int, int]] = {}
        for bid, end in self.served:
            top = (bid[3], -bid[1], -bid[2])
            best[end] = max(best.get(end, top), top)
        return {(end, -top[1], -top[2], top[0]) for end, top in best.items()}

    def dropped(self, *fields: int) -> Counter[tuple[int, ...]]:
        """Return the dropped pairs: the record's `fields`, its slice, the window's end."""
        return Counter(
            (*(bid[f] for f in fields), bid[4] - bid[4] % self.slice_us, end)
            for bid, end in self.pairs
            if self.late(bid, end)
        )


def dropped(checkpoint: Path, names: list[str], signs: list[int], advance_us: int) -> Any:
    """Return the dropped (record, window) pairs that the job wrote down."""
    store = Checkpoint(checkpoint)
    latest = store.latest()
    assert latest is not None
    found: Counter[tuple[int, ...]] = Counter()
    for operator, name in latest.engine["late"]:
        assert operator == "aggregate-0", "what an operator put out cannot be late for the next"
        for row in read_table(store.read_file("late", name)).to_pylist():
            values = [sign * row[n] for n, sign in zip(names, signs, strict=True)]
            for end in ends(row["t"], advance_us):
                if end <= row["emitted"]:
                    found[*values, row["t"], end] += row["n"]
    return found


def run(frame: DataFrame, name: str, checkpoint: Path, *, changes: int | None) -> None:
    """Run a query to its end, with changes at random times unless `changes` is None."""
    query = (
        hg.writeStream(frame)
        .format("memory")
        .queryName(name)
        .option("checkpointLocation", str(checkpoint))
        .option("headgate.keepLate", "true")
        .option("headgate.preaggregate", "off")
        .slots(start=2)
        .trigger(availableNow=True)
        .start()
    )
    if changes is not None:
        answers.change_at_random(query, random.Random(changes))
    query.awaitTermination()


def micros(time: Any) -> int:
    delta = time.astimezone(answers.START.tzinfo) - answers.START
    return round(answers.START.timestamp()) * SECOND_US + round(delta.total_seconds() * SECOND_US)


seeds = [
    pytest.param(seed, marks=[] if seed < QUICK else [pytest.mark.thorough])
    for seed in range(SEEDS)
]


@pytest.mark.parametrize(
    "changes", [pytest.param(False, marks=pytest.mark.thorough), True], ids=["unchanged", "changed"]
)
@pytest.mark.parametrize("seed", seeds)
def test_q5_answers_for_all_bids_but_the_late_ones(
    session: SparkSession, tmp_path: Path, seed: int, changes: bool
) -> None:
    run(q5(session, **options(seed)), "q5", tmp_path, changes=seed if changes else None)
    expected = Expected(seed, 2 * SECOND_US, 2 * SECOND_US)
    rows = session.table("q5").collect()
    got = [(micros(row.window.end), row.auction, row.bids) for row in rows]
    late = dropped(tmp_path, ["k0"], [1], 2 * SECOND_US)
    assert late, "the events must contain late ones for this test to mean anything"
    assert late == expected.dropped(1)
    assert Counter(got) == Counter(expected.q5())


@pytest.mark.parametrize(
    "changes", [pytest.param(False, marks=pytest.mark.thorough), True], ids=["unchanged", "changed"]
)
@pytest.mark.parametrize("seed", seeds)
def test_q7_answers_for_all_bids_but_the_late_ones(
    session: SparkSession, tmp_path: Path, seed: int, changes: bool
) -> None:
    run(q7(session, **options(seed)), "q7", tmp_path, changes=seed if changes else None)
    expected = Expected(seed, SIZE_US, SIZE_US)
    rows = session.table("q7").collect()
    got = [(micros(row.window.end), row.auction, row.bidder, row.price) for row in rows]
    late = dropped(tmp_path, ["v1", "v2", "v3"], [1, -1, -1], SIZE_US)
    assert late, "the events must contain late ones for this test to mean anything"
    assert late == expected.dropped(3, 1, 2)
    assert Counter(got) == Counter(expected.q7())
