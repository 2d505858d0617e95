"""The generator is a pure function of (configuration, event number), and follows NEXMark's ids."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.core.errors import ConfigError
from headgate.workloads.rates import ConstantRate, SineRate
from headgate_demo.generators.nexmark import COLUMNS, NexmarkConfig, due, events, schema

BASE_US = 1_700_000_000_000_000
PLAIN = NexmarkConfig(rate=ConstantRate(10_000.0))
SHAPES = [
    PLAIN,
    NexmarkConfig(seed=7, rate=SineRate(0.0, 5000.0, 60.0), padding=True),
    NexmarkConfig(seed=-1, skew=1.0, prob_delayed=0.0),
    NexmarkConfig(person_proportion=2, auction_proportion=5, bid_proportion=13),
    NexmarkConfig(
        hot_auction_ratio=1, hot_seller_ratio=1, hot_bidder_ratio=1, in_flight_auctions=1
    ),
]


@pytest.mark.parametrize("config", SHAPES)
@settings(max_examples=20, deadline=None)
@given(start=st.integers(0, 10**9), cuts=st.lists(st.integers(0, 300), max_size=6))
def test_any_slicing_gives_the_same_rows(
    config: NexmarkConfig, start: int, cuts: list[int]
) -> None:
    whole = events(config, start, start + 300, BASE_US)
    edges = [0, *sorted(cuts), 300]
    parts = [events(config, start + a, start + b, BASE_US) for a, b in pairwise(edges)]
    assert pa.Table.from_batches(parts).combine_chunks().equals(pa.Table.from_batches([whole]))
    whole.validate(full=True)


def test_the_rows_are_those_of_the_first_release() -> None:
    # A stream that restarts after an upgrade must continue as it began.
    rows = events(PLAIN, 2, 6, BASE_US).to_pylist()
    assert [row["event_type"] for row in rows] == [1, 1, 2, 2]
    assert rows[1]["auction"]["id"] == 1002
    got = [
        tuple(row["bid"][f] for f in ("auction", "bidder", "price", "channel")) for row in rows[2:]
    ]
    assert got == GOLDEN


GOLDEN = [(1005, 1010, 6450, "Facebook"), (1000, 1001, 380277, "Apple")]


@pytest.mark.parametrize("columns", [["bid"], ["bid.price", "scheduled"], ["auction.seller"], None])
def test_a_column_does_not_depend_on_which_others_are_made(columns: list[str] | None) -> None:
    full = pa.Table.from_batches([events(PLAIN, 90, 290, BASE_US)]).flatten()
    some = pa.Table.from_batches([events(PLAIN, 90, 290, BASE_US, columns)])
    assert some.schema == schema(columns)
    for name in some.flatten().column_names:
        assert some.flatten()[name].equals(full[name]), name


def test_columns_come_in_the_order_of_a_full_row() -> None:
    assert schema(["scheduled", "bid.price", "event_type"]).names == [
        "event_type",
        "bid",
        "scheduled",
    ]
    assert tuple(schema().names) == COLUMNS


def test_fifty_events_are_one_person_three_auctions_and_bids() -> None:
    kinds = events(PLAIN, 0, 100, BASE_US, ["event_type"])["event_type"].to_pylist()
    assert kinds == ([0] + [1] * 3 + [2] * 46) * 2


def test_ids_follow_the_formulas() -> None:
    # Workloads, section 2, written as there.
    for row, event in zip(events(PLAIN, 5000, 5100, 0).to_pylist(), range(5000, 5100), strict=True):
        epoch, off = divmod(event, 50)
        last_person = epoch * 1 + min(off, 0)
        if off < 1:
            last_auction = (epoch - 1) * 3 + 2
        elif off >= 4:
            last_auction = epoch * 3 + 2
        else:
            last_auction = epoch * 3 + (off - 1)
        if row["person"]:
            assert row["person"]["id"] == 1000 + last_person
        elif row["auction"]:
            assert row["auction"]["id"] == 1000 + last_auction
            assert row["auction"]["category"] in range(10, 15)
            assert row["auction"]["reserve"] > row["auction"]["initialBid"]
            assert row["auction"]["expires"] > row["auction"]["dateTime"]
        else:
            auction, bidder = row["bid"]["auction"] - 1000, row["bid"]["bidder"] - 1000
            hot = last_auction // 100 * 100
            assert auction == hot or max(last_auction - 100, 0) <= auction <= last_auction + 10
            people = last_person + 1
            active = min(people, 1000)
            hot = last_person // 100 * 100 + 1
            assert bidder == hot or people - active <= bidder < people + 10


def _bids(config: NexmarkConfig, start: int, stop: int) -> dict[str, np.ndarray]:
    batch = events(config, start, stop, BASE_US, ["event_type", "bid"])
    bids = batch.filter(pa.array(batch["event_type"].to_numpy() == 2))["bid"]
    return {f: bids.field(f).to_numpy() for f in ("auction", "bidder", "price")}


def test_hot_ones_get_the_share_that_their_ratio_says() -> None:
    # Epochs 67 to 99: auctions 200 to 299 are newest, people 0 to 99.
    bids = _bids(PLAIN, 67 * 50, 99 * 50)
    assert np.mean(bids["auction"] == 1200) == pytest.approx(1 / 2, abs=0.05)
    assert np.mean(bids["bidder"] == 1001) == pytest.approx(3 / 4, abs=0.05)


def test_ratio_one_means_never_hot() -> None:
    flat = replace(PLAIN, hot_auction_ratio=1, hot_bidder_ratio=1, in_flight_auctions=1)
    bids = _bids(flat, 0, 50_000)
    # Twelve candidates each: one in flight, the newest, ten ahead.
    assert max(Counter(bids["auction"].tolist()).values()) < 200


def test_skew_gives_rank_k_its_zipf_share() -> None:
    bids = _bids(replace(PLAIN, skew=1.0, in_flight_auctions=50), 67 * 50, 99 * 50)
    harmonic = sum(1 / k for k in range(1, 51))
    assert np.mean(bids["auction"] == 1200) == pytest.approx(1 / harmonic, abs=0.03)
    assert np.mean(bids["auction"] == 1199) == pytest.approx(0.5 / harmonic, abs=0.03)
    assert bids["auction"].min() > 1150


def test_prices_are_even_on_a_log_scale() -> None:
    prices = _bids(PLAIN, 0, 100_000)["price"]
    assert 100 <= prices.min() <= prices.max() <= 100_000_000
    share = np.histogram(np.log10(prices), bins=6, range=(2, 8))[0] / len(prices)
    assert share == pytest.approx(np.full(6, 1 / 6), abs=0.01)


def test_a_tenth_of_the_events_is_older_by_at_most_the_delay() -> None:
    batch = events(PLAIN, 0, 100_000, BASE_US, ["dateTime", "scheduled"])
    event_us, due_us = (batch[c].cast(pa.int64()).to_numpy() for c in ("dateTime", "scheduled"))
    older_us = due_us - event_us
    assert older_us.min() == 0
    assert 2_900_000 < older_us.max() <= 3_000_000
    assert np.mean(older_us > 0) == pytest.approx(0.1, abs=0.01)
    assert np.mean(older_us[older_us > 0]) == pytest.approx(1_500_000, rel=0.05)


@pytest.mark.parametrize("config", [replace(PLAIN, delay_ms=0), replace(PLAIN, prob_delayed=0.0)])
def test_no_delay_means_event_time_is_when_due(config: NexmarkConfig) -> None:
    batch = events(config, 0, 1000, BASE_US, ["dateTime", "scheduled"])
    assert batch["dateTime"].equals(batch["scheduled"])


def test_events_are_due_by_the_time_they_are_scheduled_for() -> None:
    config = replace(PLAIN, rate=SineRate(0.0, 500.0, 7.0))
    due_us = events(config, 0, 5000, 0, ["scheduled"])["scheduled"].cast(pa.int64()).to_numpy()
    assert (np.diff(due_us) >= 0).all()
    for elapsed_us in (0, 1, 999_999, 3_500_000, 6_000_001):
        # Scheduled times are cut to whole microseconds, so that an event may be due just after.
        count = due(config, elapsed_us / 1e6)
        assert (due_us[:count] <= elapsed_us).all()
        assert (due_us[count:] >= elapsed_us).all()


def test_the_end_is_never_passed() -> None:
    assert due(replace(PLAIN, max_events=500), 3600.0) == 500
    assert due(PLAIN, 0.01) == 100


def test_padding_fills_up_to_the_average_sizes() -> None:
    batch = events(replace(PLAIN, padding=True), 0, 20_000, BASE_US)
    for kind, name, least, most in (
        (2, "bid", 55, 82),
        (1, "auction", 266, 399),
        (0, "person", 107, 161),
    ):
        rows = batch.filter(pa.array(batch["event_type"].to_numpy() == kind))[name]
        sizes = [len(text) for text in rows.field("extra").to_pylist()]
        assert least <= min(sizes) <= max(sizes) <= most


def test_another_seed_gives_other_bids_and_the_same_ids() -> None:
    one, two = (events(replace(PLAIN, seed=seed), 0, 100, BASE_US) for seed in (1, 2))
    assert not one["bid"].equals(two["bid"])
    assert one["auction"].field("id").equals(two["auction"].field("id"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("person_proportion", 0), ("bid_proportion", -1), ("hot_auction_ratio", 0),
        ("skew", -0.5), ("skew", float("nan")), ("prob_delayed", 1.5), ("delay_ms", -1),
        ("delay_ms", 3_000_000), ("max_events", -1), ("active_people", 0),
    ],
)  # fmt: skip
def test_refuses_what_is_out_of_range(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=field):
        replace(PLAIN, **{field: value})


@pytest.mark.parametrize(
    ("columns", "message"),
    [(["bids"], 'did you mean "bid"'), (["bid.prize"], 'did you mean "bid.price"'), ([], "empty")],
)
def test_refuses_an_unknown_column(columns: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        events(PLAIN, 0, 1, 0, columns)
