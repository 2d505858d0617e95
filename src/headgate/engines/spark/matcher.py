"""The stock exchange's order matcher as a processor: one book per stock, the stock being the key."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.engines.spark.arrow_processor import ArrowProcessor
from headgate.operators.processor import Keyed, State
from headgate.workloads import order_book
from headgate.workloads.kernels import match as kernel

I64 = npt.NDArray[np.int64]

_ORDER = ("order", "cancel", "buy", "price", "volume", "account")
"""Columns of the kernel's pool, in its order."""

_INT = pa.int64()
_ORDERS = [("buy", pa.bool_()), ("price", _INT), ("volume", _INT), ("account", _INT)]

_STATES = {
    "resting": (pa.schema([("order", _INT)]), pa.schema(_ORDERS)),
    "accounts": (pa.schema([("account", _INT)]), pa.schema([("cash", _INT), ("shares", _INT)])),
}

TRADES = "stock int, buy bigint, sell bigint, price bigint, volume bigint"
"""What the matcher puts out: the stock, the orders that met, cents, shares."""


class Matcher(ArrowProcessor):
    """Continuous auction by price, then time; see `headgate.workloads.order_book`.

    Parameters
    ----------
    cash, shares : int
        What an account has of each stock to begin with, cents and shares.
    """

    keys = pa.schema([("stock", pa.int32())])
    inputs = pa.schema([("number", _INT), ("order", _INT), ("cancel", pa.bool_()), *_ORDERS])
    states = _STATES

    def __init__(self, cash: int = order_book.CASH, shares: int = order_book.SHARES) -> None:
        self._cash, self._shares = cash, shares

    def handleBatch(self, keys: pa.RecordBatch, batch: Keyed, state: State) -> pa.RecordBatch:
        """Match the arriving orders against the books, in the order of their numbers."""
        stocks = keys.num_rows
        resting, accounts = state["resting"], state["accounts"]
        order = np.lexsort((_column(batch, "number"), batch.of))
        pool = np.concatenate([_pool(resting), _pool(batch)[order]])
        order_at = batch.starts(stocks) + len(resting.of)
        known = len(accounts.of)
        balances = np.zeros((known + len(batch.of), 3), dtype=np.int64)
        for at, name in enumerate(accounts.rows.schema.names):
            balances[:known, at] = _column(accounts, name)
        before, volume = balances[:known].copy(), pool[: len(resting.of), kernel.VOLUME].copy()
        trades, opened = kernel.match(
            pool, resting.starts(stocks), order_at,
            balances, accounts.starts(stocks), self._cash, self._shares,
        )  # fmt: skip
        of = np.concatenate([resting.of, batch.of])
        left = pool[:, kernel.VOLUME]
        changed = np.concatenate([left[: len(volume)] != volume, left[len(volume) :] > 0])
        gone = changed & (left == 0)
        state.remove("resting", of[gone], _orders(pool[gone]))
        state.put("resting", of[changed & ~gone], _orders(pool[changed & ~gone]))
        moved = np.concatenate([(balances[:known] != before).any(axis=1), opened >= 0])
        owner = np.concatenate([accounts.of, opened])[moved]
        rows = balances[: len(moved)][moved]
        columns = [pa.array(np.ascontiguousarray(column)) for column in rows.T]
        names = accounts.rows.schema.names
        state.put("accounts", owner, pa.RecordBatch.from_arrays(columns, names=names))
        columns = [pa.array(np.ascontiguousarray(column)) for column in trades.T]
        columns[0] = keys.column("stock").take(columns[0])
        return pa.RecordBatch.from_arrays(
            columns, names=["stock", "buy", "sell", "price", "volume"]
        )


def _column(keyed: Keyed, name: str) -> I64:
    column = keyed.rows.column(name)
    numbers: I64 = column.cast(_INT).to_numpy(zero_copy_only=False)
    return numbers


def _pool(keyed: Keyed) -> I64:
    """Return orders as the kernel takes them; one that rests does not cancel."""
    pool = np.zeros((len(keyed.of), len(_ORDER)), dtype=np.int64)
    for at, name in enumerate(_ORDER):
        if name in keyed.rows.schema.names:
            pool[:, at] = _column(keyed, name)
    return pool


def _orders(pool: I64) -> pa.RecordBatch:
    columns = [pa.array(np.ascontiguousarray(column)) for column in pool.T]
    return pa.RecordBatch.from_arrays(columns, names=list(_ORDER))
