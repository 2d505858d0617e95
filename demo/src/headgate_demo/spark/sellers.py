"""Implements the last step of NEXMark Q6 as a processor: averages of a seller's last auctions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.operators.processor import Keyed, State, Timers
from headgate.spark.worker.arrow_processor import ArrowProcessor

I64 = npt.NDArray[np.int64]

LAST = 10
"""Auctions that are averaged. NEXMark Q6."""

AVERAGES = "seller bigint, auction bigint, average double"
"""Output columns, a row for each closed auction: the average over it and up to nine before it."""

_INT = pa.int64()
_TIME = pa.timestamp("us", tz="UTC")

_STATES = {
    "last": (pa.schema([("auction", _INT)]), pa.schema([("opened", _TIME), ("price", _INT)])),
}


class LastAuctions(ArrowProcessor):
    """Averages the prices of each seller's last ten auctions, in the order in which they opened.

    Assumes that the auctions of a step opened after all auctions of earlier steps, since the results of
    a window come by event time.
    """

    keys = pa.schema([("seller", _INT)])
    inputs = pa.schema([("opened", _TIME), ("auction", _INT), ("price", _INT)])
    states = _STATES

    def handleBatch(
        self, keys: pa.RecordBatch, batch: Keyed, state: State, timers: Timers
    ) -> pa.RecordBatch:
        """Return an average for every auction of the batch."""
        before = state["last"]
        of = np.concatenate([before.of, batch.of])
        opened, auction, price = (
            np.concatenate([_column(before, name), _column(batch, name)])
            for name in ("opened", "auction", "price")
        )
        order = np.lexsort((auction, opened, of))
        of, opened, auction, price = of[order], opened[order], auction[order], price[order]
        new = order >= len(before.of)
        at, first = np.arange(len(of)), np.searchsorted(of, of)
        start = np.maximum(first, at - (LAST - 1))
        sums = np.concatenate([[0], np.cumsum(price)])
        average = (sums[at + 1] - sums[start]) / (at + 1 - start)
        left = np.searchsorted(of, of, side="right") - at
        stays = left <= LAST
        state.remove("last", of[~new & ~stays], _rows(auction=auction[~new & ~stays]))
        put = new & stays
        times = pa.array(opened[put]).cast(_TIME)
        state.put("last", of[put], _rows(auction=auction[put], opened=times, price=price[put]))
        seller = keys.column("seller").take(pa.array(of[new]))
        return _rows(seller=seller, auction=auction[new], average=average[new])


def _column(keyed: Keyed, name: str) -> I64:
    numbers: I64 = keyed.rows.column(name).cast(_INT).to_numpy(zero_copy_only=False)
    return numbers


def _rows(**columns: object) -> pa.RecordBatch:
    arrays = [c if isinstance(c, pa.Array) else pa.array(c) for c in columns.values()]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))
