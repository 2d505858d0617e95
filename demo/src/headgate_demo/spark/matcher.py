"""Implements the stock exchange's order matcher as a processor: the key is the stock, one book each."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.operators.processor import Keyed, State, Timers
from headgate.spark.worker.arrow_processor import ArrowProcessor
from headgate_demo.generators import order_book
from headgate_demo.generators.kernels import match as kernel

I64 = npt.NDArray[np.int64]

_ORDER = ("order", "cancel", "buy", "price", "volume", "account")
_ACCOUNT = ("account", "cash", "shares")
_TRADE = ("buy", "sell", "price", "volume")
"""`_ORDER`, `_ACCOUNT`, `_TRADE`: names of the kernel's columns."""

_INT = pa.int64()
_ORDERS = [("buy", pa.bool_()), ("price", _INT), ("volume", _INT), ("account", _INT)]

_STATES = {
    "resting": (pa.schema([("order", _INT)]), pa.schema(_ORDERS)),
    "accounts": (pa.schema([("account", _INT)]), pa.schema([("cash", _INT), ("shares", _INT)])),
}

TRADES = "stock int, buy bigint, sell bigint, price bigint, volume bigint"
"""Output columns of the matcher: the stock, both orders of the trade, the price in cents, shares."""


class Matcher(ArrowProcessor):
    """Matches orders by price, then time; see `headgate_demo.generators.order_book`.

    Parameters
    ----------
    cash, shares : int
        Initial balance of an account: cents, and shares of its stock.
    """

    keys = pa.schema([("stock", pa.int32())])
    inputs = pa.schema([("number", _INT), ("order", _INT), ("cancel", pa.bool_()), *_ORDERS])
    states = _STATES

    def __init__(self, cash: int = order_book.CASH, shares: int = order_book.SHARES) -> None:
        self._cash, self._shares = cash, shares

    def handleBatch(
        self, keys: pa.RecordBatch, batch: Keyed, state: State, timers: Timers
    ) -> pa.RecordBatch:
        """Match the arriving orders against the books, in the order of their numbers."""
        stocks = keys.num_rows
        resting, accounts = state["resting"], state["accounts"]
        by_number = np.lexsort((_column(batch, "number"), batch.of))
        pool = np.concatenate([_matrix(resting, _ORDER), _matrix(batch, _ORDER)[by_number]])
        room = np.zeros((len(batch.of), len(_ACCOUNT)), dtype=np.int64)
        balances = np.concatenate([_matrix(accounts, _ACCOUNT), room])
        volume_before, balances_before = pool[:, kernel.VOLUME].copy(), balances.copy()
        volume_before[len(resting.of) :] = 0
        trades, opened = kernel.match(
            pool, resting.starts(stocks), len(resting.of) + batch.starts(stocks),
            balances, accounts.starts(stocks), self._cash, self._shares,
        )  # fmt: skip
        of = np.concatenate([resting.of, batch.of])
        changed = pool[:, kernel.VOLUME] != volume_before
        gone = changed & (pool[:, kernel.VOLUME] == 0)
        rests = changed & ~gone
        state.remove("resting", of[gone], _batch(pool[gone], _ORDER))
        state.put("resting", of[rests], _batch(pool[rests], _ORDER))
        owners = np.concatenate([accounts.of, opened])
        moved = (balances != balances_before).any(axis=1)[: len(owners)]
        moved[len(accounts.of) :] = True
        state.put("accounts", owners[moved], _batch(balances[: len(owners)][moved], _ACCOUNT))
        traded = _batch(trades, ("of", *_TRADE))
        stock = keys.column("stock").take(traded.column("of"))
        columns = [stock, *(traded.column(name) for name in _TRADE)]
        return pa.RecordBatch.from_arrays(columns, names=["stock", *_TRADE])


def _column(keyed: Keyed, name: str) -> I64:
    numbers: I64 = keyed.rows.column(name).cast(_INT).to_numpy(zero_copy_only=False)
    return numbers


def _matrix(keyed: Keyed, names: tuple[str, ...]) -> I64:
    """Return int64[n, names]; a missing column is 0, as `cancel` is for resting orders."""
    matrix = np.zeros((len(keyed.of), len(names)), dtype=np.int64)
    for at, name in enumerate(names):
        if name in keyed.rows.schema.names:
            matrix[:, at] = _column(keyed, name)
    return matrix


def _batch(matrix: I64, names: tuple[str, ...]) -> pa.RecordBatch:
    columns = [pa.array(np.ascontiguousarray(column)) for column in matrix.T]
    return pa.RecordBatch.from_arrays(columns, names=list(names))
