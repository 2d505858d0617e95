"""Finds matching records: first by key, then by comparisons, all in the form ``<=``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headgate.operators.join.kernels import compare_keyed
from headgate.operators.join.spec import LEFT, Comparison
from headgate.operators.spec import Kind
from headgate.tables.ports import I64

Pairs = tuple[I64, I64]
"""Positions of each pair's probe record and stored record."""

_GREATEST = np.iinfo(np.int64).max

_FAR = 2.0**60
"""Largest absolute value with which a band is used; sums of larger values could overflow int64."""

_PAIRS_FIRST = 1024
"""Initial room, in pairs; the room doubles when it is full."""

_WORTH_SORTING = 16
"""Comparisons per stored record above which sorting the stored records pays. Chosen, not tuned."""


@dataclass(frozen=True)
class SideRecords:
    """Holds one side's records in the form that matching needs."""

    of: I64
    """int64[n]: the number of each record's key, -1 for a record that cannot match."""
    bounds: I64
    """int64[c, n]: the result of `bounds_of`."""


def ordered(words: I64, kind: Kind) -> I64:
    """Map words of a kind to integers that compare alike: NaN is the largest, -0.0 equals 0.0."""
    if kind is not Kind.FLOAT:
        return words
    values = words.view(np.float64) + 0.0
    values[np.isnan(values)] = np.nan
    bits = values.view(np.int64)
    in_order: I64 = np.where(bits < 0, bits ^ _GREATEST, bits)
    return in_order


def bounds_of(
    side: int, comparisons: tuple[Comparison, ...], columns: list[I64], count: int
) -> tuple[I64, npt.NDArray[np.bool_]]:
    """Return int64[c, n] such that ``left[c] <= right[c]`` is equivalent to comparison c.

    Parameters
    ----------
    side : int    LEFT or RIGHT.
    columns : list of int64[n]    This side's leaf of each comparison, mapped by `ordered`.
    count : int    n.

    Returns
    -------
    bounds : int64[c, n]
    possible : bool[n]
        False for a record that cannot match: no value exceeds the greatest int64.
    """
    bounds = np.empty((len(comparisons), count), dtype=np.int64)
    possible = np.ones(count, dtype=np.bool_)
    for at, (comparison, column) in enumerate(zip(comparisons, columns, strict=True)):
        turned = ~column if comparison.op in (">", ">=") else column
        if side == LEFT and comparison.op in ("<", ">"):
            possible &= turned != _GREATEST
            turned = np.where(turned != _GREATEST, turned, 0) + 1
        bounds[at] = turned
    return bounds, possible


def pairs(probe: SideRecords, stored: SideRecords, keys: int, *, probe_side: int) -> Pairs:
    """Return the positions of matching records, ascending by probe record.

    `keys`: number of distinct keys. `probe_side`: LEFT or RIGHT, the side of `probe`.
    """
    order = np.argsort(stored.of, kind="stable")
    order = order[np.searchsorted(stored.of[order], 0) :]
    of = stored.of[order]
    starts = np.searchsorted(of, np.arange(keys + 1)).astype(np.int64)
    bounds, theirs = probe.bounds, stored.bounds[:, order]
    if probe_side != LEFT:
        bounds, theirs = ~bounds, ~theirs
    band = -1
    sizes = np.diff(starts, append=starts[-1:])[probe.of]
    if int(sizes[probe.of >= 0].sum()) > _WORTH_SORTING * max(len(order), 1):
        band, total = _band(theirs)
        if band > 0 and np.abs(bounds[[0, band]].astype(np.float64)).max(initial=0.0) > _FAR:
            band = -1
        if band > 0:
            by_first = np.lexsort((theirs[0], of))
            order, theirs = order[by_first], theirs[:, by_first]
            bounds = bounds.copy()
            bounds[band] = total - bounds[band]

    theirs, bounds = np.ascontiguousarray(theirs), np.ascontiguousarray(bounds)

    def step(start: int, probes: I64, partners: I64) -> tuple[int, int]:
        return compare_keyed(probe.of, bounds, starts, theirs, band, start, probes, partners)

    probes, matches = collect(step, len(probe.of))
    return probes, order[matches]


def _band(stored: I64) -> tuple[int, int]:
    """Return (c, sum) if comparison c bounds from above what comparison 0 bounds from below; or (-1, 0).

    Example: ``a - 10 <= x`` and ``x <= a + 10``. For stored x they compare x and ~x, whose sum is -1 for
    every record; for stored a the sum is another constant. If records are sorted by comparison 0, the
    matches of a probe record are then neighbours.
    """
    if stored.shape[1] == 0 or np.abs(stored[:1].astype(np.float64)).max(initial=0.0) > _FAR:
        return -1, 0
    for at in range(1, len(stored)):
        total = stored[0] + stored[at]
        if abs(int(total[0])) < _FAR and bool((total == total[0]).all()):
            return at, int(total[0])
    return -1, 0


def collect(step: Callable[[int, I64, I64], tuple[int, int]], probe_count: int) -> Pairs:
    """Run a kernel until it has processed all probe records; double the room at each stop."""
    room, start = _PAIRS_FIRST, 0
    probes: list[I64] = []
    partners: list[I64] = []
    while start < probe_count:
        probe_out, stored_out = np.empty(room, np.int64), np.empty(room, np.int64)
        count, start = step(start, probe_out, stored_out)
        probes.append(probe_out[:count])
        partners.append(stored_out[:count])
        room *= 2
    if not probes:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return np.concatenate(probes), np.concatenate(partners)
