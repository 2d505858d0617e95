"""The generated orders: shares as in the paper, repeatable, and cancellations that name orders."""

from __future__ import annotations

import numpy as np
import pytest

from headgate.core.errors import ConfigError
from headgate.workloads.rates import ConstantRate, ExchangeRate, parse_rate
from headgate_demo.generators.stock_exchange import SCHEMA, ExchangeConfig, orders

BASE_US = 1_700_000_000_000_000


def config(**changes):
    return ExchangeConfig(**{"seed": 3, "rate": ConstantRate(1000.0), **changes})


def test_a_row_is_the_same_however_the_range_is_cut():
    whole = orders(config(), 0, 5000, BASE_US)
    parts = [orders(config(), *span, BASE_US) for span in ((0, 1), (1, 1234), (1234, 5000))]
    assert whole.schema == SCHEMA
    assert whole.to_pylist() == [row for part in parts for row in part.to_pylist()]


def test_another_seed_gives_other_orders():
    assert not orders(config(), 0, 100, 0).equals(orders(config(seed=4), 0, 100, 0))


def test_the_heaviest_stock_has_two_and_the_eleven_heaviest_ten_percent_of_the_rows():
    stock = orders(config(), 0, 400_000, 0).column("stock").to_numpy()
    shares = np.sort(np.bincount(stock, minlength=1156))[::-1] / len(stock)
    assert 0.02 < shares[0] < 0.022
    assert 0.10 < shares[:11].sum() < 0.107
    assert shares[-1] > 0


def test_a_cancellation_repeats_an_earlier_row():
    rows = orders(config(), 0, 3000, 0).to_pylist()
    cancelling = [row for row in rows if row["cancel"]]
    assert 0.12 < len(cancelling) / len(rows) < 0.18
    same = ("stock", "buy", "price", "volume", "account")
    for row in cancelling:
        named = rows[row["order"]]
        assert named["number"] < row["number"]
        if not named["cancel"]:
            assert [named[name] for name in same] == [row[name] for name in same]
    assert all(row["order"] == row["number"] for row in rows if not row["cancel"])


def test_rows_are_scheduled_by_the_rate():
    scheduled = orders(config(), 0, 10, BASE_US).column("scheduled").cast("int64").to_pylist()
    assert scheduled == [BASE_US + 1000 * (i + 1) for i in range(10)]


def test_a_rush_gives_the_quietest_stock_its_share_from_its_beginning_on():
    stock = orders(config(rush_share=0.3, rush_from_s=5.0), 0, 10_000, 0).column("stock")
    rushed = stock.to_numpy() == 1155
    assert rushed[:4900].mean() < 0.01
    # a cancellation among the first repeats an order from before the rush
    assert 0.2 < rushed[5000:].mean() < 0.33


@pytest.mark.parametrize(
    "wrong",
    [{"stocks": 0}, {"accounts": 0}, {"exponent": -1.0}, {"cancels": 1.0}, {"rush_share": 1.1}],
)
def test_a_setting_out_of_range_is_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        config(**wrong)


def test_a_day_at_the_exchange_has_the_orders_and_the_rushes_of_the_paper():
    rate = ExchangeRate()
    assert rate.count(14_400.0) == pytest.approx(14_854_215, rel=0.001)
    assert 70_000 < rate.rate_at(0.0) < 80_000
    assert rate.rate_at(7200.0) == rate.rate_at(0.0)
    assert rate.rate_at(3600.0) < 1000 < rate.rate_at(7199.0)


def test_the_count_of_a_day_is_the_integral_of_its_rate():
    rate = parse_rate("exchange(speed=100, load=0.5)")
    edges_s = np.linspace(0, 144, 200_001)
    middle_s = (edges_s[1:] + edges_s[:-1]) / 2
    total = float((rate.rate_at(middle_s) * np.diff(edges_s)).sum())
    assert rate.count(144.0) == pytest.approx(total, rel=0.002)
    assert rate.count(144.0) == pytest.approx(14_854_215 / 200, rel=0.001)
