"""Finds the partners of records: by key, then by comparisons, which are all of the form <=."""

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
"""Positions of the probe and of the stored record of each pair."""

_GREATEST = np.iinfo(np.int64).max

_FAR = 2.0**60
"""Values beyond this are compared one by one: sums of them could overflow."""

_PAIRS_FIRST = 1024
"""Room for pairs at the start; doubled when it is full."""

_WORTH_SORTING = 16
"""Comparisons per stored record from which putting the stored ones in order pays. Chosen, not tuned."""


@dataclass(frozen=True)
class SideRecords:
    """Holds the records of one side, ready to be matched."""

    of: I64
    """int64[n]: the number of each record's key, -1 for a record that cannot match."""
    bounds: I64
    """int64[c, n]: the result of `bounds_of`."""


def ordered(words: I64, kind: Kind) -> I64:
    """Return words of one kind as integers of the same order: NaN the largest, -0.0 equal to 0.0."""
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
    columns : list of int64[n]    What this side compares, in order (`ordered`), one per comparison.
    count : int    n.

    Returns
    -------
    bounds : int64[c, n]
    possible : bool[n]
        False for a record that no comparison can hold for: nothing is greater than the greatest.
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
    """Return the positions of the records that meet, by probe record.

    `keys`: how many keys there are. `probe_side`: LEFT or RIGHT: whose records `probe` are.
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
    """Return (comparison, sum) if one of them bounds from above what the first bounds from below.

    ``a - 10 <= x`` and ``x <= a + 10`` are, for stored x, comparisons of x and of ~x, whose sum is -1
    for every record; for stored a it is another constant. Then the records that meet a probe lie side
    by side in the order of the first.
    """
    if stored.shape[1] == 0 or np.abs(stored[:1].astype(np.float64)).max(initial=0.0) > _FAR:
        return -1, 0
    for at in range(1, len(stored)):
        total = stored[0] + stored[at]
        if abs(int(total[0])) < _FAR and bool((total == total[0]).all()):
            return at, int(total[0])
    return -1, 0


def collect(step: Callable[[int, I64, I64], tuple[int, int]], probe_count: int) -> Pairs:
    """Run a kernel until it has done all probe records, with more room each time it stops."""
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
