"""Computes NEXMark's queries from lists in one thread, as a reference for the jobs.

Events are dictionaries from `events`; times are microseconds. A query returns a counter of rows, since
streams have no order. The code is slow, since it is written to be read.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from headgate_demo.generators import nexmark

Event = dict[str, Any]
Rows = Counter[tuple[Any, ...]]

KINDS = ("person", "auction", "bid")
WINDOW_US = 10_000_000
HOP_US = 2_000_000
STATES = ("OR", "ID", "CA")


def events(config: nexmark.NexmarkConfig, stop: int, base_us: int) -> dict[str, list[Event]]:
    """Return the first `stop` events by kind, times as microseconds."""
    found: dict[str, list[Event]] = {kind: [] for kind in KINDS}
    for row in nexmark.events(config, 0, stop, base_us).to_pylist():
        kind = KINDS[row["event_type"]]
        found[kind].append({k: _micros(v) for k, v in row[kind].items()})
    return found


def _micros(value: Any) -> Any:
    if not hasattr(value, "timestamp"):
        return value
    return round(value.replace(microsecond=0).timestamp()) * 1_000_000 + value.microsecond


def q0(bids: Iterable[Event]) -> Rows:
    """Return (auction, bidder, price, time) of all bids."""
    return Counter((b["auction"], b["bidder"], b["price"], b["dateTime"]) for b in bids)


def q1(bids: Iterable[Event]) -> Rows:
    """Return (auction, price in thousandths of a euro cent) of all bids."""
    return Counter((b["auction"], b["price"] * 908) for b in bids)


def q2(bids: Iterable[Event]) -> Rows:
    """Return (auction, price) of bids on every 123rd auction."""
    return Counter((b["auction"], b["price"]) for b in bids if b["auction"] % 123 == 0)


def q3(people: Iterable[Event], auctions: Iterable[Event]) -> Rows:
    """Return (name, city, state, auction) of category 10 and three states."""
    sellers = {p["id"]: p for p in people if p["state"] in STATES}
    found: Rows = Counter()
    for auction in auctions:
        seller = sellers.get(auction["seller"])
        if seller and auction["category"] == nexmark.FIRST_CATEGORY:
            found[seller["name"], seller["city"], seller["state"], auction["id"]] += 1
    return found


def closed_auctions(
    auctions: Iterable[Event], bids: Iterable[Event], longest_us: int, until_us: int
) -> list[tuple[Event, int]]:
    """Return each auction opened up to `until_us` that had a bid in time, and the highest price."""
    by_auction = defaultdict(list)
    for bid in bids:
        by_auction[bid["auction"]].append(bid)
    found = []
    for auction in auctions:
        opened = auction["dateTime"]
        end = min(auction["expires"], opened + longest_us)
        prices = [b["price"] for b in by_auction[auction["id"]] if opened <= b["dateTime"] <= end]
        if prices and opened <= until_us:
            found.append((auction, max(prices)))
    return found


def q4(closed: Iterable[tuple[Event, int]], until_us: int) -> Rows:
    """Return (window's end, category, average price) of the windows that end up to `until_us`."""
    prices = defaultdict(list)
    for auction, price in closed:
        end = auction["dateTime"] - auction["dateTime"] % WINDOW_US + WINDOW_US
        prices[end, auction["category"]].append(price)
    return Counter((*key, sum(p) / len(p)) for key, p in prices.items() if key[0] <= until_us)


def q5(bids: Iterable[Event], until_us: int) -> Rows:
    """Return (window's end, auction, bids) of the auction with most bids, of a tie the lowest one.

    Windows are of 10 s, every 2 s, and end at `until_us` or before.
    """
    counts: Counter[tuple[int, int]] = Counter()
    for bid in bids:
        last = bid["dateTime"] - bid["dateTime"] % HOP_US
        for start in range(last, bid["dateTime"] - WINDOW_US, -HOP_US):
            counts[start + WINDOW_US, bid["auction"]] += 1
    best: dict[int, tuple[int, int]] = {}
    for (end, auction), number in counts.items():
        best[end] = max(best.get(end, (0, 0)), (number, -auction))
    return Counter((end, -top[1], top[0]) for end, top in best.items() if end <= until_us)


def q6(closed: Iterable[tuple[Event, int]], last: int = 10) -> Rows:
    """Return (seller, auction, average price of the seller's last ten auctions)."""
    prices: dict[int, list[int]] = defaultdict(list)
    found: Rows = Counter()
    for auction, price in sorted(closed, key=lambda c: (c[0]["dateTime"], c[0]["id"])):
        mine = prices[auction["seller"]]
        mine.append(price)
        recent = mine[-last:]
        found[auction["seller"], auction["id"], sum(recent) / len(recent)] += 1
    return found


def q7(bids: Iterable[Event], until_us: int) -> Rows:
    """Return (window's end, auction, bidder, price) of the highest bid of each window of 10 s.

    Windows end at `until_us` or before; of equal prices the lowest auction, then the lowest bidder,
    counts.
    """
    best: dict[int, tuple[int, int, int]] = {}
    for bid in bids:
        end = bid["dateTime"] - bid["dateTime"] % WINDOW_US + WINDOW_US
        top = (bid["price"], -bid["auction"], -bid["bidder"])
        best[end] = max(best.get(end, top), top)
    return Counter((end, -top[1], -top[2], top[0]) for end, top in best.items() if end <= until_us)


def q8(people: Iterable[Event], auctions: Iterable[Event]) -> Rows:
    """Return (window's end, id, name) of people who opened an auction in their first window."""

    def window(event: Event) -> int:
        return int(event["dateTime"]) // WINDOW_US

    opened = {(a["seller"], window(a)) for a in auctions}
    return Counter(
        ((window(p) + 1) * WINDOW_US, p["id"], p["name"])
        for p in people
        if (p["id"], window(p)) in opened
    )
