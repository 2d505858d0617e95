"""The stock exchange has the counts that its paper gives of a trading day."""

from __future__ import annotations

import numpy as np
import pytest

from headgate.core.errors import ConfigError
from headgate.workloads.traces import Trace
from headgate_lab.workloads.stock_exchange_rates import StockExchange


@pytest.fixture(scope="module")
def day() -> Trace:
    return StockExchange().trace(seed=1)


def test_the_day_has_about_as_many_orders_as_the_real_one(day: Trace) -> None:
    assert day.counts.shape == (14_400, 64)
    assert day.total == pytest.approx(14_854_215, rel=0.005)


def test_both_sessions_open_with_a_spike_of_about_70_thousand_orders(day: Trace) -> None:
    per_s = day.counts.sum(axis=1)
    for opening in (0, 7200):
        assert 60_000 < per_s[opening] < 80_000
        assert per_s[opening : opening + 60].sum() == pytest.approx(375_000 + 60 * 1400, rel=0.1)
        assert per_s[opening + 60 : opening + 7200].max() < 10_000


def test_the_rate_is_hundreds_to_thousands_and_rises_toward_the_close(day: Trace) -> None:
    per_s = np.delete(day.counts.sum(axis=1), np.r_[0:60, 7200:7260])
    assert 150 < np.percentile(per_s, 1) < 600
    assert 2000 < np.percentile(per_s, 99) < 6000
    assert per_s[-900:].mean() > 1.5 * per_s.mean()


def test_the_heaviest_stock_has_2_percent_and_the_top_eleven_10() -> None:
    exchange = StockExchange()
    stocks = np.arange(exchange.stocks)
    trace = exchange.trace(seed=2, key_groups=exchange.stocks, groups=stocks, slice_s=10.0)
    per_stock = trace.counts.sum(axis=0)
    shares = np.sort(per_stock)[::-1] / per_stock.sum()
    assert 0.02 < shares[0] < 0.03
    assert 0.10 < shares[:11].sum() < 0.13


def test_what_is_hot_changes_over_the_day(day: Trace) -> None:
    minutes = day.counts.reshape(240, 60, 64).sum(axis=1)
    hottest = minutes.argmax(axis=1)
    assert len(set(hottest.tolist())) > 3


def test_a_day_depends_on_its_seed_alone(day: Trace) -> None:
    assert (StockExchange().trace(seed=1).counts == day.counts).all()
    assert (StockExchange().trace(seed=2).counts != day.counts).any()


def test_the_resolution_does_not_change_the_day() -> None:
    short = StockExchange(session_s=600.0)
    fine, coarse = short.rate(0.1), short.rate(1.0)
    assert fine.reshape(-1, 10).mean(axis=1) == pytest.approx(coarse, rel=0.01)


def test_a_range_is_named() -> None:
    with pytest.raises(ConfigError, match=r"stock exchange: rise=1\.5 is out of range"):
        StockExchange(rise=1.5)
