"""Generates orders at a stock exchange: limit orders of many stocks, and cancellations.

Every row is a pure function of (configuration, order number), as in `headgate_demo.generators.nexmark`.

References
----------
[STREAMSWITCH] 6.1: 1,156 stocks, of which the heaviest has over 2 % and the 11 heaviest over 10 % of
the orders (figure 4). Differs: generated, since the recorded day was never published; continuous
auction only, no call auction before the opening.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.core.errors import ConfigError
from headgate.workloads.rates import ExchangeRate, RateFunction
from headgate_demo.generators.draws import F64, I64, Draw, zipf_edges

__all__ = ["SCHEMA", "ExchangeConfig", "orders"]

STOCKS, EXPONENT = 1156, 0.57
"""[STREAMSWITCH] 6.1; the Zipf exponent that gives the shares of its figure 4."""

LOT = 100
"""Shares are ordered by the hundred, as in Shanghai."""

LOTS_MAX = 50
"""Largest number of lots per order. Chosen, not tuned."""

PRICE_LOW, PRICE_HIGH = 500, 5_000
"""Range of the stocks' mean prices, in cents. Chosen, not tuned."""

DRIFT, DRIFT_S = 0.03, 600.0
"""Amplitude (share of the mean price) and period (seconds) of a stock's price. Chosen, not tuned."""

SPREAD, LEAN = 0.01, 0.35
"""Limits are uniform within `SPREAD`, a share of the drifting price. They are then shifted by `LEAN`
times `SPREAD` away from the other side, so that about one new order in four trades at once. Chosen, not
tuned."""

CANCEL_REACH = 20_000
"""A cancellation names one of this many rows before it. Chosen, not tuned."""

_FIELDS = ("stock", "side", "limit", "lots", "account", "cancel", "cancelled", "rush")
"""Fields with random values; their order is part of the format."""

SCHEMA = pa.schema(
    [
        pa.field("number", pa.int64()),
        pa.field("order", pa.int64()),
        pa.field("cancel", pa.bool_()),
        pa.field("stock", pa.int32()),
        pa.field("buy", pa.bool_()),
        pa.field("price", pa.int64()),
        pa.field("volume", pa.int64()),
        pa.field("account", pa.int64()),
        pa.field("scheduled", pa.timestamp("us", tz="UTC")),
    ]
)
"""Columns of `orders`: number of the row over all stocks; number of the order, or of the order that the
row cancels; whether the row is a cancellation; stock; whether the order buys; limit in cents; shares;
account; due time. A cancellation repeats all columns of its order but `number`, `cancel` and
`scheduled`."""


_RATE = ExchangeRate()


@dataclass(frozen=True)
class ExchangeConfig:
    """Holds the parameters of the generator: stocks, accounts and the rate of orders."""

    seed: int = 0
    """Chooses all random numbers; any integer of 64 bits."""

    rate: RateFunction = _RATE
    """Rows per second."""

    stocks: int = STOCKS
    """Stocks; >= 1."""

    exponent: float = EXPONENT
    """Zipf exponent of orders over stocks; >= 0; at 0 all stocks get equally many."""

    accounts: int = 100
    """Accounts that trade in each stock; >= 1. Chosen, not tuned."""

    cancels: float = 0.15
    """Share of rows that are cancellations; 0 to below 1. Chosen, not tuned."""

    rush_share: float = 0.0
    """Share of the orders that go to the last stock, otherwise the quietest, during a rush; 0 to 1."""

    rush_from_s: float = 0.0
    """Begin of the rush, seconds after the start; >= 0. It does not end."""

    def __post_init__(self) -> None:
        for name, least in (("stocks", 1), ("accounts", 1), ("exponent", 0), ("rush_from_s", 0)):
            if not getattr(self, name) >= least:
                msg = f"{name} of stock_exchange is {getattr(self, name)}; give {least} or more."
                raise ConfigError(msg)
        if not 0.0 <= self.cancels < 1.0:
            msg = f"cancels of stock_exchange is {self.cancels}; give a share from 0 to below 1."
            raise ConfigError(msg)
        if not 0.0 <= self.rush_share <= 1.0:
            msg = f"rush_share of stock_exchange is {self.rush_share}; give a share from 0 to 1."
            raise ConfigError(msg)


def orders(config: ExchangeConfig, start: int, stop: int, base_us: int) -> pa.RecordBatch:
    """Return the rows [start, stop) of the stream.

    A pure function: a row depends only on the configuration, its number and the base.

    Parameters
    ----------
    start, stop : int
        Row numbers from 0; ``0 <= start <= stop``.
    base_us : int
        When the stream started, us since the Unix epoch.

    Returns
    -------
    RecordBatch
        Rows with `SCHEMA`, by `number`.
    """
    assert 0 <= start <= stop, (start, stop)
    number = np.arange(start, stop, dtype=np.int64)
    cancels = _cancels(config, number)
    order = np.where(cancels, _cancelled(config, number), number)
    given = _Orders(config, order)
    scheduled = pa.array(base_us + _due_us(config, number))
    columns = [
        pa.array(number),
        pa.array(order),
        pa.array(cancels),
        pa.array(given.stock.astype(np.int32)),
        pa.array(given.buys),
        pa.array(given.limit()),
        pa.array(LOT * (1 + given.draw.below("lots", LOTS_MAX))),
        pa.array(given.draw.below("account", config.accounts)),
        scheduled.cast(pa.timestamp("us")).cast(pa.timestamp("us", tz="UTC")),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _due_us(config: ExchangeConfig, number: I64) -> I64:
    """Return when rows are due, whole microseconds after the start."""
    return np.floor(config.rate.time_of(number) * 1e6).astype(np.int64)


def _cancels(config: ExchangeConfig, number: I64) -> npt.NDArray[np.bool_]:
    """Return which rows are cancellations; never the first row, which has none before it."""
    share = Draw.of(config.seed, number, _FIELDS).unit("cancel")
    cancels: npt.NDArray[np.bool_] = (share < config.cancels) & (number > 0)
    return cancels


def _cancelled(config: ExchangeConfig, number: I64) -> I64:
    """Return the earlier row that each row would cancel; that row may itself be a cancellation."""
    reach = np.minimum(np.maximum(number, 1), CANCEL_REACH)
    back = Draw.of(config.seed, number, _FIELDS).below("cancelled", reach)
    return number - 1 - back


class _Orders:
    """Orders by number.

    Attributes
    ----------
    draw : Draw
    stock : int64[n]
    buys : bool[n]
    """

    def __init__(self, config: ExchangeConfig, number: I64) -> None:
        self._config = config
        self._number = number
        self.draw = Draw.of(config.seed, number, _FIELDS)
        shares = zipf_edges(config.stocks, config.exponent)
        rank = np.searchsorted(shares, self.draw.unit("stock"), side="right")
        self.stock: I64 = np.minimum(rank, config.stocks - 1)
        if config.rush_share > 0.0:
            rushing = config.rate.time_of(number) >= config.rush_from_s
            rushing &= self.draw.unit("rush") < config.rush_share
            self.stock[rushing] = config.stocks - 1
        self.buys: npt.NDArray[np.bool_] = self.draw.below("side", 2) == 1

    def limit(self) -> I64:
        """Return the limits, int64[n], in cents."""
        away = 2 * self.draw.unit("limit") - 1  # share of the spread, -1 to 1
        lean = np.where(self.buys, -LEAN, LEAN)
        price = self._market() * (1 + SPREAD * (away + lean))
        cents: I64 = np.rint(price).astype(np.int64)
        return cents

    def _market(self) -> F64:
        """Return the drifting prices around which limits lie, float64[n], in cents."""
        # mean price and phase of a stock: two low-discrepancy sequences over the stocks
        mean = PRICE_LOW + (self.stock * 0.6180339887498949) % 1.0 * (PRICE_HIGH - PRICE_LOW)
        phase = (self.stock * 0.7548776662466927) % 1.0
        time_s = self._config.rate.time_of(self._number)
        price: F64 = mean * (1 + DRIFT * np.sin(2 * np.pi * (time_s / DRIFT_S + phase)))
        return price
