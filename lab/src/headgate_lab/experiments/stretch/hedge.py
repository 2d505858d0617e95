"""Makes synthetic hedged trades, and STRETCH's predicate in the two forms its text allows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headgate.core.jit import jit
from headgate_lab.oplus.band import compare_theta_all

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

COMPANIES = 10
_DEVIATION = 0.01
"""Deviation of a price from yesterday's mean, as a share of it. Chosen, not tuned."""


@jit
def hedges_as_printed(left: Any, i: int, right: Any, j: int) -> bool:
    """Return whether ``-1.05 <= ND_R / ND_L`` for two companies; ND_L = 0 hedges nothing."""
    if left[0][i] == right[0][j] or left[1][i] == 0.0:
        return False
    return bool(right[1][j] / left[1][i] >= -1.05)  # noqa: PLR2004 - the paper's


@jit
def hedges(left: Any, i: int, right: Any, j: int) -> bool:
    """Return whether ``-1.05 <= ND_R / ND_L <= -0.95``: as far, in the other direction."""
    if left[0][i] == right[0][j] or left[1][i] == 0.0:
        return False
    ratio = right[1][j] / left[1][i]
    return bool(-1.05 <= ratio <= -0.95)  # noqa: PLR2004 - the paper's, and as much above -1


def trades(seed: int, count: int) -> tuple[I64, F64]:
    """Return company and normalised distance of `count` trades.

    Returns
    -------
    company : int64[count]
    distance : float64[count]
        (price - average) / average, of prices and averages in whole cents.

    References
    ----------
    STRETCH 8.6, of whose data only the schema is given. Chosen: averages of 50 to 500 dollars, a
    common factor of the market and one of each company, equally strong.
    """
    generator = np.random.default_rng(seed)
    average = generator.integers(5_000, 50_000, COMPANIES)
    company = generator.integers(0, COMPANIES, count)
    market = np.cumsum(generator.normal(0.0, 1.0, count)) / np.sqrt(count)
    own = generator.normal(0.0, 1.0, COMPANIES)[company]
    price = np.rint(average[company] * (1.0 + _DEVIATION * (market + own))).astype(np.int64)
    return company, (price - average[company]) / average[company]


def share_of_pairs(seed: int, count: int) -> dict[str, float]:
    """Return the share of the pairs of `count` trades that match, for each form of the predicate."""
    times = np.zeros(count, dtype=np.int64)
    columns = trades(seed, count)
    return {
        name: compare_theta_all(match, times, columns, times, columns, 0)[0].size / count**2
        for name, match in (("as_printed", hedges_as_printed), ("bounded", hedges))
    }
