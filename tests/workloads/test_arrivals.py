"""Arrivals do not depend on how they are read, and follow their rate or their trace."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.errors import ConfigError
from headgate.workloads.arrivals import ArrivalFeed, ArrivalStream, TraceArrivals, groups_at
from headgate.workloads.rates import ConstantRate, SineRate
from headgate.workloads.traces import Trace
from headgate_lab.workloads.arrivals import RateArrivals

SHARES = np.array([0.1, 0.2, 0.3, 0.4])
SINE = SineRate(0.0, 200.0, 20.0)
TRACE = Trace(np.array([[5, 0, 1, 0], [0, 0, 0, 0], [3, 4, 0, 9]]), 0.5)
STREAMS: list[ArrivalStream] = [
    RateArrivals(SINE, SHARES),
    RateArrivals(SINE, SHARES, poisson=True),
    TraceArrivals(TRACE),
]


def feed(arrivals: ArrivalStream, seed: int = 3) -> ArrivalFeed:
    return ArrivalFeed(arrivals, np.random.default_rng(seed))


@pytest.mark.parametrize("arrivals", STREAMS)
@given(cuts_s=st.lists(st.floats(0.0, 60.0), max_size=10))
def test_a_feed_gives_the_same_records_however_it_is_cut(
    arrivals: ArrivalStream, cuts_s: list[float]
) -> None:
    whole = feed(arrivals).until(60.0)
    piecewise, parts = feed(arrivals), []
    for cut_s in [*sorted(cuts_s), 60.0]:
        parts.append(piecewise.until(cut_s))
        assert (parts[-1][0] <= cut_s).all()
    for index in range(2):
        assert np.concatenate([p[index] for p in parts]).tolist() == whole[index].tolist()
    assert (np.diff(whole[0]) >= 0.0).all()


def test_a_schedule_is_kept_to_the_record() -> None:
    times_s, _ = feed(RateArrivals(SINE, SHARES)).until(40.0)
    assert times_s.tolist() == SINE.time_of(np.arange(len(times_s))).tolist()
    assert len(times_s) == SINE.count(40.0)


def test_a_poisson_stream_has_as_much_variance_as_mean() -> None:
    times_s, _ = feed(RateArrivals(SINE, SHARES, poisson=True)).until(4000.0)
    per_period = np.bincount((times_s / 20.0).astype(int), minlength=200)
    assert per_period.mean() == pytest.approx(4000.0, rel=0.01)
    assert per_period.var() == pytest.approx(4000.0, rel=0.3)
    phase = np.histogram(np.mod(times_s, 20.0), bins=2)[0] / len(times_s)
    assert phase[0] == pytest.approx(0.5 + 1 / np.pi, abs=0.01)


def test_records_spread_over_key_groups_by_their_shares() -> None:
    _, groups = feed(RateArrivals(ConstantRate(1000.0), SHARES)).until(100.0)
    assert np.bincount(groups) / len(groups) == pytest.approx(SHARES, rel=0.03)


def test_a_trace_gives_its_counts_and_ends() -> None:
    stream = feed(TraceArrivals(TRACE))
    times_s, groups = stream.until(100.0)
    cells = np.zeros((3, 4), dtype=int)
    np.add.at(cells, ((times_s / 0.5).astype(int), groups), 1)
    assert cells.tolist() == TRACE.counts.tolist()
    assert len(stream.until(200.0)[0]) == 0


def test_a_long_trace_comes_in_pieces() -> None:
    counts = np.random.default_rng(0).poisson(40.0, (500, 4))
    times_s, groups = feed(TraceArrivals(Trace(counts, 0.1))).until(50.0)
    assert np.bincount(groups).tolist() == counts.sum(axis=0).tolist()
    assert np.bincount((times_s * 10).astype(int)).tolist() == counts.sum(axis=1).tolist()


def test_a_draw_at_the_edge_belongs_to_the_next_group_and_never_beyond() -> None:
    edges = np.array([0.25, 0.25, 1.0])
    assert groups_at(edges, np.array([0.0, 0.25, np.nextafter(1.0, 0.0)])).tolist() == [0, 2, 2]


def test_shares_must_make_one() -> None:
    with pytest.raises(ConfigError, match=r"add up to 0\.9"):
        RateArrivals(SINE, [0.5, 0.4])
    with pytest.raises(ConfigError, match="numbers >= 0"):
        RateArrivals(SINE, [1.5, -0.5])
