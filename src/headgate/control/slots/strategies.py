"""Finds the best way to move key groups from one slot to one other: StreamSwitch's unit strategies.

Pure functions over an `OperatorView`. Each returns a `UnitStrategy`, or None where no strategy helps; a
policy decides whether a strategy is worth its cost. `pressure` orders slots: by projected latency, and
where that is infinite, by load. Of equal slots the lower number comes first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from headgate.control.decision import Change, ChangeKind
from headgate.control.observation import OperatorView
from headgate.control.slots.projection import F64, pressure, projected_latency_s
from headgate.core.assignment import Assignment

I64 = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_NO_SLOT_YET = -1
"""Identity of a planned slot, which does not exist yet."""


@dataclass(frozen=True)
class UnitStrategy:
    """Holds one move of key groups: `groups` go from `source` to `destination`."""

    kind: ChangeKind
    """Scale-out, scale-in or balance."""
    groups: tuple[int, ...]
    """K: the key groups that move, in the order in which they were chosen."""
    source: int
    destination: int
    """`source`, `destination`: s and d, as numbers of the present assignment; a new slot has the next
    number."""
    survivors: tuple[int | None, ...]
    """As `Change.survivors`: the old number of each slot of the new assignment."""
    latency_s: F64
    """float64[len(survivors)]: projected latency of each slot of the new assignment, in seconds."""
    split: Mapping[int, tuple[int, ...]] | None = None
    """Split key groups of the new assignment, and the slots of each; None: the splits stay as they
    are."""


@dataclass(frozen=True)
class Prefix:
    """Holds the key groups that move away from a source: the first of its groups in some sequence."""

    groups: tuple[int, ...]
    rate: float
    kept: float
    """`rate`, `kept`: arrivals per second of these groups, and of those that stay."""
    pressure: float
    """The larger pressure of source and destination afterwards."""
    pressure_before: float
    """Pressure of the source before the move."""


def change_of(view: OperatorView, strategy: UnitStrategy) -> Change:
    """Return the change that carries out `strategy`: the next epoch."""
    slot_of = np.array(view.assignment.slot_of)
    slot_of[list(strategy.groups)] = strategy.destination
    number = {old: new for new, old in enumerate(strategy.survivors) if old is not None}
    # A new slot has a number that no old one has.
    moved = tuple(number.get(slot, slot) for slot in slot_of.tolist())
    split = strategy.split
    if split is None:
        merged = strategy.kind is ChangeKind.SCALE_IN
        split = {
            # shares of a removed slot move together with its key groups
            group: tuple(
                number[strategy.destination if merged and slot == strategy.source else slot]
                for slot in shares
            )
            for group, shares in view.assignment.split.items()
        }
    assignment = Assignment(moved, len(strategy.survivors), view.assignment.epoch + 1, split)
    return Change(
        strategy.kind, assignment, strategy.survivors, strategy.source, strategy.destination
    )


def view_after(view: OperatorView, strategy: UnitStrategy) -> OperatorView:
    """Return the view that would follow `strategy`, with unchanged rates.

    The backlog moves with its key groups. A new slot has the latency of its source, and after a merge
    the destination has the larger latency of the two slots.
    """
    change = change_of(view, strategy)
    origins = [strategy.source if old is None else old for old in strategy.survivors]
    latency_s = view.latency_s.copy()
    if strategy.kind is ChangeKind.SCALE_IN:
        ends = latency_s[[strategy.source, strategy.destination]]
        latency_s[strategy.destination] = np.fmax(*ends)
    return replace(
        view,
        assignment=replace(change.assignment, epoch=view.assignment.epoch),
        slot_ids=tuple(
            _NO_SLOT_YET if old is None else view.slot_ids[old] for old in strategy.survivors
        ),
        latency_s=latency_s[origins],
        service_rate=view.service_rate[origins],
        utilisation=view.utilisation[origins],
    )


def joined(first: Change, second: Change) -> Change:
    """Return two changes as one change of one epoch; `second` starts from the result of `first`."""
    kind = first.kind if second.kind is ChangeKind.BALANCE else second.kind
    survivors = tuple(None if slot is None else first.survivors[slot] for slot in second.survivors)
    return replace(first, kind=kind, assignment=second.assignment, survivors=survivors)


def best_prefix(
    view: OperatorView,
    epsilon: float,
    source: int,
    mu_destination: float,
    rate_destination: float,
    *,
    fixed: Flags | None = None,
) -> Prefix | None:
    """Return the groups to move from `source` that minimise the larger pressure of the two slots.

    Of equally good prefixes, the shortest. None where no group may move. At least one group stays:
    moving all groups would only replace the slot.

    `epsilon`: safety margin in [0, 1). `mu_destination`, `rate_destination`: service rate of the
    destination, and its arrivals per second before the move. `fixed` (bool[G]): key groups that are not
    to move; None for none.

    References
    ----------
    StreamSwitch 3.4, Algorithm 2, FindOptimalSubstreams: groups by mean latency, ascending, those
    without completions first. Differs: the printed loop keeps the group that makes the result worse,
    stops at the first group that does not help (and so fails where the source stays overloaded after
    one group), and assigns where it should add and subtract.
    """
    best = _best_prefixes(
        view, epsilon, source, np.array([mu_destination]), np.array([rate_destination]), fixed
    )
    return None if best is None else best[1]


def best_balance(
    view: OperatorView, epsilon: float, source: int, *, fixed: Flags | None = None
) -> UnitStrategy | None:
    """Return the best move from `source` to another slot; None where no move relieves the source.

    `view`, `epsilon`, `source`, `fixed`: as for `best_prefix`.

    References
    ----------
    StreamSwitch 3.4, Algorithm 2, FindOptimalLBStrategy; every destination with its own measured
    service rate. Differs: a third slot that is worse off than the source does not forbid the move.
    The destination with the least of max(L_s, L_d) also has the least maximum over all slots.
    """
    others = np.flatnonzero(np.arange(view.slots) != source)
    rates = view.slot_rate
    best = _best_prefixes(view, epsilon, source, view.service_rate[others], rates[others], fixed)
    if best is None or not best[1].pressure < best[1].pressure_before:
        return None
    destination, prefix = int(others[best[0]]), best[1]
    rates[source] = prefix.kept
    rates[destination] += prefix.rate
    return UnitStrategy(
        ChangeKind.BALANCE,
        prefix.groups,
        source,
        destination,
        tuple(range(view.slots)),
        projected_latency_s(rates, view.service_rate, epsilon),
    )


def best_scale_out(
    view: OperatorView, epsilon: float, source: int, *, fixed: Flags | None = None
) -> UnitStrategy | None:
    """Return the best move from `source` to a new slot; None where no move relieves the source.

    `view`, `epsilon`, `source`, `fixed`: as for `best_prefix`.

    References
    ----------
    StreamSwitch 3.4: the new slot is assumed to have the service rate of its source.
    """
    mu_source = float(view.service_rate[source])
    prefix = best_prefix(view, epsilon, source, mu_source, 0.0, fixed=fixed)
    if prefix is None or not prefix.pressure < prefix.pressure_before:
        return None
    rates = view.slot_rate
    rates[source] = prefix.kept
    return UnitStrategy(
        ChangeKind.SCALE_OUT,
        prefix.groups,
        source,
        view.slots,
        (*range(view.slots), None),
        projected_latency_s(
            np.append(rates, prefix.rate), np.append(view.service_rate, mu_source), epsilon
        ),
    )


def best_scale_in(view: OperatorView, epsilon: float) -> UnitStrategy | None:
    """Return the best merge of one slot into another; None where there is only one slot.

    Also None where all slots have a share of one split key group: that split must end first.

    References
    ----------
    StreamSwitch 3.4, Algorithm 1: of all ordered pairs, the pair whose projected latencies, sorted
    in descending order, come first lexicographically. Differs: the printed search starts from the
    vector without a merge, so that equal slots never merge; this search starts from no vector.
    """
    slots = view.slots
    if slots < 2:  # noqa: PLR2004
        return None
    rates = view.slot_rate
    now = pressure(rates, view.service_rate, epsilon)
    merged = pressure(rates[:, None] + rates[None, :], view.service_rate[None, :], epsilon)
    # Of equal slots only the first two are candidates: one to merge, and one to merge into.
    alike = (rates[:, None] == rates) & (view.service_rate[:, None] == view.service_rate)
    for shares in view.assignment.split.values():
        has_share = np.isin(np.arange(slots), shares)
        alike &= has_share[:, None] == has_share
    stands = np.tril(alike, -1).sum(axis=1) < 2  # noqa: PLR2004
    pairs = stands[:, None] & stands & ~np.eye(slots, dtype=bool)
    for shares in view.assignment.split.values():
        pairs[np.ix_(shares, shares)] = False  # a merged slot would have two shares
    if not pairs.any():
        return None
    source, destination = _least_pair(now, merged, pairs)
    survivors = list(range(slots - 1))
    if source < slots - 1:
        survivors[source] = slots - 1
    rates[destination] += rates[source]
    latency = projected_latency_s(rates, view.service_rate, epsilon)
    return UnitStrategy(
        ChangeKind.SCALE_IN,
        view.assignment.groups_of(source),
        source,
        destination,
        tuple(survivors),
        latency[survivors],
    )


def _best_prefixes(
    view: OperatorView, epsilon: float, source: int, mu: F64, rate: F64, fixed: Flags | None
) -> tuple[int, Prefix] | None:
    """Return the first of the best destinations, and the groups to move to it.

    None where no group may move, or where there is no destination. `mu` and `rate` are float64[D].
    """
    groups = np.flatnonzero(np.asarray(view.assignment.slot_of) == source)
    stays = np.zeros(len(groups), dtype=bool) if fixed is None else fixed[groups]
    stays |= np.isin(groups, list(view.assignment.split))
    movable = groups[~stays]
    longest = len(movable) if stays.any() else len(movable) - 1
    if longest < 1 or not len(mu):
        return None
    latency = view.group_latency_s[movable]
    order = movable[np.argsort(np.where(np.isnan(latency), -np.inf, latency), kind="stable")]
    moved = np.cumsum(view.group_rate[order])
    # One sum for all prefixes, so that a move of groups without arrivals improves nothing.
    total = moved[-1] + view.group_rate[groups[stays]].sum()
    if view.assignment.split:
        # a slot has shares of its own split groups, and of split groups that other slots own
        total = max(float(view.slot_rate[source]), float(moved[-1]))
    kept, moved = (total - moved)[:longest], moved[:longest]
    mu_source = float(view.service_rate[source])
    lengths, scores = _best_lengths(kept, moved, mu_source, mu, rate, epsilon)
    best = int(np.argmin(scores))
    length = int(lengths[best])
    prefix = Prefix(
        groups=tuple(order[:length].tolist()),
        rate=float(moved[length - 1]),
        kept=float(kept[length - 1]),
        pressure=float(scores[best]),
        pressure_before=float(pressure(total, mu_source, epsilon)),
    )
    return best, prefix


def _best_lengths(
    kept: F64, moved: F64, mu_source: float, mu: F64, rate: F64, epsilon: float
) -> tuple[I64, F64]:
    """Return, per destination, how many groups to move and the larger pressure that results.

    With every group the source's pressure falls and the destination's grows. So the best prefix is the
    last one before they cross, or the first one after. A binary search finds both for all destinations
    at once, with at most ``log2(K) + 4`` projections of each.

    `kept`, `moved` (float64[K], K >= 1): arrivals per second that stay at the source, and that move, with
    1, 2, ... K groups. `mu`, `rate` (float64[D]): service rate and present arrival rate of each
    destination. The lengths are int64[D] in [1, K], the shortest of equally good ones.
    """

    def pressures(lengths: I64) -> tuple[F64, F64]:
        at = lengths - 1
        return pressure(kept[at], mu_source, epsilon), pressure(rate + moved[at], mu, epsilon)

    longest = len(moved)
    low = np.ones(len(mu), dtype=np.int64)
    high = np.full(len(mu), longest + 1)
    # Afterwards low is the shortest prefix with source <= destination; longest + 1 where none is.
    while np.any(low < high):
        middle = np.minimum((low + high) // 2, longest)
        source, destination = pressures(middle)
        crossed = (source <= destination) & (low < high)
        low = np.where(crossed | (low >= high), low, middle + 1)
        high = np.where(crossed, middle, high)
    after = np.minimum(low, longest)
    # Groups without arrivals do not change the pressures: take the shortest of equal prefixes.
    before = np.searchsorted(-kept, -kept[np.maximum(low - 2, 0)], side="left") + 1
    before = np.minimum(before, after)
    score_after, score_before = (np.maximum(*pressures(n)) for n in (after, before))
    nearer = score_before <= score_after
    return np.where(nearer, before, after), np.where(nearer, score_before, score_after)


def _least_pair(now: F64, merged: F64, pairs: Flags) -> tuple[int, int]:
    """Return the pair (source, destination) whose pressures, descending, are lexicographically least.

    `now` (float64[N]): pressure of each slot. `merged` (float64[N, N]): in (s, d) the pressure of d with
    the load of s added. `pairs` (bool[N, N]): in (s, d) whether the pair is a candidate.
    """
    slots = len(now)
    source, destination = np.nonzero(pairs)
    new = merged[source, destination]
    order = np.argsort(-now, kind="stable")
    rank = np.argsort(order, kind="stable")
    first, second = np.sort((rank[source], rank[destination]), axis=0)
    # Compare one element of all vectors at a time, largest first: few pairs survive the first elements.
    ranked = np.append(now[order], (-np.inf, -np.inf))
    above = np.full(len(new), np.inf)
    for place in range(slots - 1):
        # The unchanged slots skip the two ranks of the pair; the merged slot takes its place among them.
        others = ranked[place + (place >= first) + (place + 1 >= second)]
        values = np.maximum(others, np.minimum(above, new))
        keep = np.flatnonzero(values == values.min())
        if len(keep) == 1:
            return int(source[keep[0]]), int(destination[keep[0]])
        if len(keep) < len(values):
            source, destination, new = source[keep], destination[keep], new[keep]
            first, second, others = first[keep], second[keep], others[keep]
        above = others
    return int(source[0]), int(destination[0])
