"""Matches the orders of many stocks at once, as `headgate_demo.generators.order_book` defines it.

The resting orders of a side are in a binary heap, so that an order costs the logarithm of their number.
A cancelled order stays in its heap with volume 0 until it reaches the top.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headgate.core.jit import jit

I64 = npt.NDArray[np.int64]

ORDER, CANCEL, BUY, PRICE, VOLUME, ACCOUNT = range(6)
"""Columns of a pool of orders."""

OWNER, CASH, SHARES = range(3)
"""Columns of balances."""


@jit
def _before(pool: I64, left: int, right: int) -> bool:
    """Return whether order `left` trades before order `right`; both rest on one side."""
    if pool[left, PRICE] != pool[right, PRICE]:
        dearer = pool[left, PRICE] > pool[right, PRICE]
        return bool(dearer) if pool[left, BUY] == 1 else not dearer
    return bool(pool[left, ORDER] < pool[right, ORDER])


@jit
def _sink(heap: I64, count: int, at: int, pool: I64) -> None:
    """Move the entry at `at` down until it trades before both its children."""
    while True:
        child = 2 * at + 1
        if child >= count:
            return
        if child + 1 < count and _before(pool, heap[child + 1], heap[child]):
            child += 1
        if not _before(pool, heap[child], heap[at]):
            return
        heap[at], heap[child] = heap[child], heap[at]
        at = child


@jit
def _push(heap: I64, count: int, order: int, pool: I64) -> None:
    heap[count] = order
    at = count
    while at > 0:
        parent = (at - 1) // 2
        if not _before(pool, heap[at], heap[parent]):
            return
        heap[at], heap[parent] = heap[parent], heap[at]
        at = parent


@jit
def _place(index: I64, table: I64, column: int, value: int) -> int:
    """Return the position in `index` of the row of `table` with this value, or the free one for it."""
    mask = len(index) - 1
    position = value & mask
    while index[position] != 0 and table[index[position] - 1, column] != value:
        position = (position + 1) & mask
    return position


@jit
def _row(index: I64, table: I64, column: int, value: int) -> int:
    """Return the row of `table` with this value, or -1."""
    return int(index[_place(index, table, column, value)] - 1)


@jit
def _note(index: I64, table: I64, column: int, row: int) -> None:
    index[_place(index, table, column, table[row, column])] = row + 1


@jit
def _index(table: I64, column: int, start: int, stop: int, most: int) -> I64:
    """Return a hash index of the rows [start, stop), with room for `most` rows."""
    size = 4
    while size < 2 * most:
        size *= 2
    index = np.zeros(size, dtype=np.int64)
    for row in range(start, stop):
        _note(index, table, column, row)
    return index


@jit
def _fill(heaps: I64, counts: I64, pool: I64, start: int, stop: int) -> None:
    """Build the heaps of both sides from the resting orders [start, stop)."""
    for i in range(start, stop):
        side = pool[i, BUY]
        heaps[side, counts[side]] = i
        counts[side] += 1
    for side in range(2):
        for at in range(counts[side] // 2 - 1, -1, -1):
            _sink(heaps[side], counts[side], at, pool)


@jit
def _set_aside(pool: I64, order: int, balances: I64, account: int) -> bool:
    """Reserve the cash or shares of an order in its account; return False if there is not enough."""
    volume = pool[order, VOLUME]
    need = pool[order, PRICE] * volume
    if pool[order, BUY] == 1 and balances[account, CASH] >= need:
        balances[account, CASH] -= need
        return True
    if pool[order, BUY] == 0 and balances[account, SHARES] >= volume:
        balances[account, SHARES] -= volume
        return True
    return False


@jit
def _give_back(pool: I64, order: int, balances: I64, by_account: I64) -> None:
    """Cancel an order: return its reserve to the account and set its volume to 0."""
    account = _row(by_account, balances, OWNER, pool[order, ACCOUNT])
    if pool[order, BUY] == 1:
        balances[account, CASH] += pool[order, PRICE] * pool[order, VOLUME]
    else:
        balances[account, SHARES] += pool[order, VOLUME]
    pool[order, VOLUME] = 0


@jit
def _settle(
    pool: I64, buyer: int, seller: int, price: int, balances: I64, by_account: I64, trade: I64
) -> None:
    """Execute the trade of two orders, the smaller of both volumes, and write it to `trade`."""
    volume = min(pool[buyer, VOLUME], pool[seller, VOLUME])
    pool[buyer, VOLUME] -= volume
    pool[seller, VOLUME] -= volume
    account = _row(by_account, balances, OWNER, pool[buyer, ACCOUNT])
    # the reserve was made at the limit, which may be above the price
    balances[account, CASH] += (pool[buyer, PRICE] - price) * volume
    balances[account, SHARES] += volume
    account = _row(by_account, balances, OWNER, pool[seller, ACCOUNT])
    balances[account, CASH] += price * volume
    trade[1], trade[2] = pool[buyer, ORDER], pool[seller, ORDER]
    trade[3], trade[4] = price, volume


@jit
def match(
    pool: I64,
    resting_at: I64,
    order_at: I64,
    balances: I64,
    balance_at: I64,
    cash: int,
    shares: int,
) -> tuple[I64, I64]:
    """Match the arriving orders of many stocks, in their sequence within each stock.

    Parameters
    ----------
    pool : int64[m + n, 6]
        The resting orders, then the arriving rows, both by stock. VOLUME is changed in place to the
        volume that rests afterwards; it is 0 for a cancellation.
    resting_at, order_at : int64[k + 1]
        First row in `pool` of each stock's resting orders, and of its arriving rows; the last element is
        the end.
    balances : int64[a + n, 3]
        The existing accounts, by stock, then room for new ones. Changed in place.
    balance_at : int64[k + 1]
        First row of each stock's accounts; the last element is a.
    cash, shares : int
        Initial balance of a new account.

    Returns
    -------
    (int64[t, 5], int64[b])
        Trades (index of the stock, buy, sell, price, volume) in their sequence; and for each new
        account, in `balances` from row a on, the index of its stock.
    """
    stocks = len(resting_at) - 1
    trades = np.zeros((64, 5), dtype=np.int64)
    traded = 0
    first_new = balance_at[stocks]
    opened = first_new
    stock_of = np.zeros(len(balances) - first_new, dtype=np.int64)
    for k in range(stocks):
        arriving = order_at[k + 1] - order_at[k]
        resting = resting_at[k + 1] - resting_at[k]
        known = balance_at[k + 1] - balance_at[k]
        by_account = _index(balances, OWNER, balance_at[k], balance_at[k + 1], known + arriving)
        by_order = _index(pool, ORDER, resting_at[k], resting_at[k + 1], resting + arriving)
        heaps = np.zeros((2, resting + arriving), dtype=np.int64)  # sellers, buyers
        counts = np.zeros(2, dtype=np.int64)
        _fill(heaps, counts, pool, resting_at[k], resting_at[k + 1])
        for i in range(order_at[k], order_at[k + 1]):
            if pool[i, CANCEL] == 1:
                pool[i, VOLUME] = 0
                found = _row(by_order, pool, ORDER, pool[i, ORDER])
                if found >= 0 and pool[found, VOLUME] > 0:
                    _give_back(pool, found, balances, by_account)
                continue
            account = _row(by_account, balances, OWNER, pool[i, ACCOUNT])
            if account < 0:
                account = opened
                opened += 1
                balances[account, OWNER] = pool[i, ACCOUNT]
                balances[account, CASH], balances[account, SHARES] = cash, shares
                stock_of[account - first_new] = k
                _note(by_account, balances, OWNER, account)
            if not _set_aside(pool, i, balances, account):
                pool[i, VOLUME] = 0
                continue
            buys = pool[i, BUY]
            other = 1 - buys
            while pool[i, VOLUME] > 0 and counts[other] > 0:
                best = heaps[other, 0]
                if pool[best, VOLUME] > 0:
                    price = pool[best, PRICE]
                    away = price - pool[i, PRICE] if buys == 1 else pool[i, PRICE] - price
                    if away > 0:
                        break
                    if traded == len(trades):
                        more = np.zeros((2 * traded, 5), dtype=np.int64)
                        more[:traded] = trades
                        trades = more
                    buyer, seller = (i, best) if buys == 1 else (best, i)
                    _settle(pool, buyer, seller, price, balances, by_account, trades[traded])
                    trades[traded, 0] = k
                    traded += 1
                if pool[best, VOLUME] == 0:  # filled now, or cancelled before
                    counts[other] -= 1
                    heaps[other, 0] = heaps[other, counts[other]]
                    _sink(heaps[other], counts[other], 0, pool)
            if pool[i, VOLUME] > 0:
                _push(heaps[buys], counts[buys], i, pool)
                counts[buys] += 1
                _note(by_order, pool, ORDER, i)
    return trades[:traded].copy(), stock_of[: opened - first_new].copy()
