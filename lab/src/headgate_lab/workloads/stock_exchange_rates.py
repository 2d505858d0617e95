"""Models the trading day of StreamSwitch's evaluation, whose orders are not public.

The paper's facts fix this model: 14,854,215 orders of 1,156 stocks in two sessions of two hours, spikes
of 70 to 80 thousand orders per second at both openings, a rise toward the close, hundreds to thousands
of orders per second otherwise, the heaviest stock above 2 % of all orders and the top eleven above 10 %.
The paper does not describe the random variation of the rate; it is chosen, and compared with figure 4
for a few seeds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headgate.control.limits import check_range
from headgate.workloads.traces import Trace, groups_of_keys
from headgate_demo.generators.draws import zipf_shares

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class StockExchange:
    """Describes a trading day.

    The rate at t seconds after an opening is ``base_per_s shape(t) market(t) + opening_per_s
    exp(-t / 5 s)``; each stock has a share of the rate, times a random factor. `market` and the stocks'
    factors are log-normal and autoregressive in time; their means over the day, weighted by volume, are
    1, so that totals and shares have the set values.

    References
    ----------
    StreamSwitch 6 (counts, skew) and figure 4. Chosen here: Zipf 0.57, which gives 2.1 % and 10.4 %;
    the decay, the shape toward the close, and both random factors.
    """

    stocks: int = 1156
    """Keys."""

    zipf: float = 0.57
    """Exponent of the stocks' shares."""

    base_per_s: float = 979.0
    """Mean rate without the openings, orders per second."""

    opening_per_s: float = 75_000.0
    """Rate added at an opening, orders per second."""

    opening_decay_s: float = 5.0
    """Time in which that rate falls to 1/e, seconds."""

    session_s: float = 7200.0
    """Length of a session, seconds."""

    sessions: int = 2
    """Sessions, one after the other."""

    rise: float = 0.5
    """Rise of the rate toward both ends of a session, relative to its mean, in [0, 1]; twice as large
    toward the end of the last session."""

    market_deviation: float = 0.3
    """Standard deviation of the log of the market's factor; >= 0."""

    market_correlation_s: float = 10.0
    """Correlation time of the market's factor, seconds."""

    stock_deviation: float = 0.8
    """Standard deviation of the log of a stock's factor; >= 0."""

    stock_correlation_s: float = 120.0
    """Correlation time of a stock's factor, seconds."""

    def __post_init__(self) -> None:
        check_range("stock exchange", "stocks", self.stocks, 1)
        check_range("stock exchange", "sessions", self.sessions, 1)
        check_range("stock exchange", "rise", self.rise, 0.0, 1.0)
        for name in ("zipf", "opening_per_s", "market_deviation", "stock_deviation"):
            check_range("stock exchange", name, getattr(self, name), 0.0)
        for name in ("base_per_s", "opening_decay_s", "session_s"):
            check_range("stock exchange", name, getattr(self, name), 0.0, above=True)
        for name in ("market_correlation_s", "stock_correlation_s"):
            check_range("stock exchange", name, getattr(self, name), 0.0, above=True)

    def rate(self, slice_s: float) -> F64:
        """Return the rate in each slice of the day without the random factors, orders per second."""
        return self._base(slice_s) + self._opening(slice_s)

    def trace(
        self,
        seed: int,
        key_groups: int = 64,
        *,
        slice_s: float = 1.0,
        groups: npt.ArrayLike | None = None,
    ) -> Trace:
        """Return one day; the same for the same arguments.

        Parameters
        ----------
        key_groups : int
            G; default: the paper's 64 substreams.
        slice_s : float
            Resolution in seconds; the number of orders in a slice is random.
        groups : int64[stocks], optional
            Key group of each stock; None hashes them. ``range(stocks)`` gives a trace per stock.
        """
        generator = np.random.default_rng(seed)
        group_of = (
            groups_of_keys(np.arange(self.stocks), key_groups)
            if groups is None
            else np.asarray(groups, dtype=np.int64)
        )
        base = self._base(slice_s)
        steps = self.market_correlation_s / slice_s
        market = _wander(generator, base[:, None], self.market_deviation, steps)[:, 0]
        rate = base * market + self._opening(slice_s)
        expected = self._shares(generator, rate, slice_s, group_of, key_groups)
        expected *= rate[:, None] * slice_s
        return Trace(generator.poisson(expected).astype(np.int32), slice_s)

    def _into_session_s(self, slice_s: float) -> F64:
        """Return the beginning of each slice, in seconds since its session opened."""
        count = round(self.sessions * self.session_s / slice_s)
        into_s: F64 = np.mod(np.arange(count) * slice_s, self.session_s)
        return into_s

    def _opening(self, slice_s: float) -> F64:
        """Return the rate that the openings add: its mean over each slice."""
        slices = slice_s / self.opening_decay_s
        decayed = np.exp(-self._into_session_s(slice_s) / self.opening_decay_s)
        rate: F64 = self.opening_per_s * decayed * -np.expm1(-slices) / slices
        return rate

    def _base(self, slice_s: float) -> F64:
        """Return the rate without the openings: high at both ends of a session."""
        into_s = self._into_session_s(slice_s)
        away = 2.0 * into_s / self.session_s - 1.0
        shape = 1.0 + self.rise * (3.0 * away**2 - 1.0) / 2.0
        last = np.arange(len(away)) >= len(away) * (self.sessions - 1) // self.sessions
        closing = last & (away > 0)
        shape[closing] += self.rise * away[closing] ** 2
        rate: F64 = self.base_per_s * shape / shape.mean()
        return rate

    def _shares(
        self,
        generator: np.random.Generator,
        rate: F64,
        slice_s: float,
        group_of: npt.NDArray[np.int64],
        key_groups: int,
    ) -> F64:
        """Return each key group's share over time, float64[slices, G]: linear between knots."""
        at = (np.arange(len(rate)) + 0.5) * slice_s * _KNOTS / self.stock_correlation_s
        knot = at.astype(np.int64)
        knots = int(knot[-1]) + 2
        after = at - knot
        volume: F64 = np.bincount(knot, rate * (1.0 - after), knots).astype(np.float64)
        volume += np.bincount(knot + 1, rate * after, knots)
        weights = np.broadcast_to(volume[:, None], (knots, self.stocks))
        activity = _wander(generator, weights, self.stock_deviation, _KNOTS)
        activity *= zipf_shares(self.stocks, self.zipf)
        shares = np.zeros((len(rate), key_groups))
        for group in range(key_groups):
            at_knots = activity[:, group_of == group].sum(axis=1)
            shares[:, group] = np.interp(at, np.arange(knots), at_knots)
        return shares


_KNOTS = 10.0
"""Number of points per correlation time at which a stock's factor is drawn. Chosen, not tuned."""


def _wander(
    generator: np.random.Generator, weights: F64, deviation: float, correlation: float
) -> F64:
    """Return log-normal autoregressive factors whose weighted mean over time is 1.

    Parameters
    ----------
    weights : float64[steps, width]
    deviation : float
        Standard deviation of the logarithm.
    correlation : float
        Steps after which 1/e of a deviation is left.

    Returns
    -------
    float64[steps, width]
    """
    keep = np.exp(-1.0 / correlation)
    noise = generator.standard_normal(weights.shape) * deviation
    noise[1:] *= np.sqrt(1.0 - keep**2)
    for step in range(1, len(noise)):
        noise[step] += keep * noise[step - 1]
    factor: F64 = np.exp(noise)
    return factor / np.average(factor, axis=0, weights=weights)
