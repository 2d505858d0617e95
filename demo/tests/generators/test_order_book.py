"""The order book by its rules, and the kernel against it."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest

from headgate.workloads.rates import ConstantRate
from headgate_demo.generators.kernels.match import BUY, ORDER, VOLUME, match
from headgate_demo.generators.order_book import Balance, OrderBook
from headgate_demo.generators.stock_exchange import ExchangeConfig, orders

NAMES = ("order", "cancel", "buy", "price", "volume", "account")
TIGHT = {"cash": 20_000_000, "shares": 8_000}
"""So little that many orders aren't covered."""


def order(number, side, price, volume, account=None, *, cancel=False):
    return {
        "order": number,
        "cancel": cancel,
        "buy": side == "buy",
        "price": price,
        "volume": volume,
        "account": number if account is None else account,
    }


def taken(*rows, book=None):
    book = book or OrderBook()
    return [trade for row in rows for trade in book.take(row)]


# -- the rules --------------------------------------------------------------------------------------


def test_an_order_meets_the_best_price_first_and_then_the_oldest():
    book = OrderBook()
    resting = [order(1, "sell", 11, 5), order(2, "sell", 10, 5), order(3, "sell", 10, 5)]
    assert taken(*resting, book=book) == []
    # (buy, sell, price, volume), at the resting order's price
    assert book.take(order(4, "buy", 12, 12)) == [(4, 2, 10, 5), (4, 3, 10, 5), (4, 1, 11, 2)]
    assert [(o.order, o.volume) for o in book.resting()] == [(1, 3)]


def test_what_is_left_of_an_order_rests_at_its_limit():
    book = OrderBook()
    assert taken(order(1, "buy", 10, 5), order(2, "sell", 9, 8), book=book) == [(1, 2, 10, 5)]
    assert [(o.order, o.price, o.volume) for o in book.resting()] == [(2, 9, 3)]


def test_orders_of_equal_volume_both_leave_the_book():
    book = OrderBook()
    assert taken(order(1, "sell", 10, 5), order(2, "buy", 10, 5), book=book) == [(2, 1, 10, 5)]
    assert book.resting() == []
    assert book.sides == {True: {}, False: {}}


def test_matching_stops_at_the_first_price_that_does_not_cross():
    rows = [order(1, "sell", 10, 1), order(2, "sell", 12, 1), order(3, "sell", 11, 1)]
    assert taken(*rows, order(4, "buy", 11, 9)) == [(4, 1, 10, 1), (4, 3, 11, 1)]


def test_a_cancelled_order_does_not_trade_and_gives_back_what_it_held():
    book = OrderBook(cash=100, shares=7)
    taken(order(1, "buy", 10, 9), order(2, "sell", 20, 7), book=book)
    assert book.accounts == {1: Balance(10, 7), 2: Balance(100, 0)}
    taken(order(1, "buy", 10, 9, cancel=True), order(2, "sell", 20, 7, cancel=True), book=book)
    assert book.accounts == {1: Balance(100, 7), 2: Balance(100, 7)}
    assert (book.resting(), book.cancelled) == ([], 16)


def test_cancelling_what_is_not_in_the_book_does_nothing():
    book = OrderBook()
    assert taken(order(9, "buy", 10, 1, cancel=True), order(1, "buy", 10, 1), book=book) == []
    assert [o.order for o in book.resting()] == [1]


def test_an_order_that_its_account_does_not_cover_is_refused():
    book = OrderBook(cash=99, shares=7)
    taken(order(1, "buy", 10, 10, account=5), order(2, "sell", 10, 8, account=5), book=book)
    assert (book.resting(), book.refused) == ([], 18)
    taken(order(3, "buy", 11, 9, account=5), book=book)
    assert book.accounts == {5: Balance(0, 7)}
    # the shares are there, what they cost is set aside by the first order
    taken(order(4, "buy", 1, 1, account=5), book=book)
    assert book.refused == 19


def test_a_trade_moves_shares_and_the_resting_price():
    book = OrderBook(cash=100, shares=10)
    taken(order(1, "sell", 8, 5), order(2, "buy", 10, 5), book=book)
    assert book.accounts == {1: Balance(140, 5), 2: Balance(60, 15)}


# -- the kernel -------------------------------------------------------------------------------------


class Kernel:
    """`match` over batches of generated orders, with the books kept in between."""

    def __init__(self):
        self.pool = np.zeros((0, 6), np.int64)
        self.stock = np.zeros(0, np.int64)
        self.balances = np.zeros((0, 3), np.int64)
        self.owner_stock = np.zeros(0, np.int64)
        self.trades = []

    def take(self, batch):
        arrays = [batch.column(name).to_numpy(zero_copy_only=False) for name in NAMES]
        rows = np.stack([array.astype(np.int64) for array in arrays], axis=1)
        stock = batch.column("stock").to_numpy().astype(np.int64)
        keys = np.unique(np.concatenate([stock, self.stock, self.owner_stock]))
        by_stock = np.argsort(stock, kind="stable")
        pool = np.concatenate([self.pool, rows[by_stock]])
        stocks = np.concatenate([self.stock, stock[by_stock]])
        ends = np.append(keys, keys[-1] + 1)
        order_at = len(self.pool) + np.searchsorted(stock[by_stock], ends)
        room = np.concatenate([self.balances, np.zeros((len(rows), 3), np.int64)])
        trades, opened = match(
            pool, np.searchsorted(self.stock, ends), order_at,
            room, np.searchsorted(self.owner_stock, ends), TIGHT["cash"], TIGHT["shares"],
        )  # fmt: skip
        self.trades += [(int(keys[t[0]]), *map(int, t[1:])) for t in trades]
        left = np.flatnonzero(pool[:, VOLUME] > 0)
        left = left[np.argsort(stocks[left], kind="stable")]
        self.pool, self.stock = pool[left], stocks[left]
        owners = np.concatenate([self.owner_stock, keys[opened]])
        order = np.argsort(owners, kind="stable")
        self.balances, self.owner_stock = room[: len(owners)][order], owners[order]


def exchange(seed, *, batches, rows=4000):
    """Return the kernel and the books after the same rows, the kernel's in batches."""
    config = ExchangeConfig(
        seed=seed, rate=ConstantRate(1000.0), stocks=7, exponent=1.0, accounts=25, cancels=0.25
    )
    kernel, books, traded = Kernel(), defaultdict(lambda: OrderBook(**TIGHT)), []
    edges = np.linspace(0, rows, batches + 1).astype(int)
    for start, stop in pairwise(edges):
        batch = orders(config, int(start), int(stop), 0)
        kernel.take(batch)
        traded += [(r["stock"], *t) for r in batch.to_pylist() for t in books[r["stock"]].take(r)]
    return kernel, books, traded, orders(config, 0, rows, 0).to_pylist()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("batches", [1, 6])
def test_the_kernel_trades_as_the_books_do(seed, batches):
    kernel, books, traded, _ = exchange(seed, batches=batches)
    per_stock = {stock: [t for t in traded if t[0] == stock] for stock in books}
    assert {s: [t for t in kernel.trades if t[0] == s] for s in books} == per_stock
    assert len(traded) > 500
    rests = {(int(s), int(row[ORDER]), int(row[BUY]), int(row[VOLUME])) for s, row in
             zip(kernel.stock, kernel.pool, strict=True)}  # fmt: skip
    assert rests == {(s, o.order, o.buy, o.volume) for s, b in books.items() for o in b.resting()}
    balances = {
        (int(s), int(a)): Balance(int(cash), int(shares))
        for s, (a, cash, shares) in zip(kernel.owner_stock, kernel.balances, strict=True)
    }
    assert balances == {(s, a): has for s, b in books.items() for a, has in b.accounts.items()}


def test_volume_money_and_shares_are_conserved():
    kernel, books, traded, rows = exchange(11, batches=3)
    came = sum(row["volume"] for row in rows if not row["cancel"])
    # a trade takes from both of its orders
    gone = 2 * sum(trade[4] for trade in traded)
    cancelled = sum(book.cancelled for book in books.values())
    refused = sum(book.refused for book in books.values())
    assert cancelled > 0 < refused
    assert came == gone + cancelled + refused + int(kernel.pool[:, VOLUME].sum())
    buys = kernel.pool[:, BUY] == 1
    held = (kernel.pool[buys][:, 3] * kernel.pool[buys][:, VOLUME]).sum()
    accounts = len(kernel.balances)
    assert kernel.balances[:, 1].sum() + held == accounts * TIGHT["cash"]
    assert kernel.balances[:, 2].sum() + kernel.pool[~buys][:, VOLUME].sum() == (
        accounts * TIGHT["shares"]
    )
