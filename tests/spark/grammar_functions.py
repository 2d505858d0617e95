"""State by functions of the user's, in generated queries."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pandas as pd
from grammar import Draw, Query, events
from grammar_data import Given
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def tally(
    key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    n, most = state.get if state.exists else (0, 0.0)
    for frame in frames:
        n, most = n + len(frame), max([most, *frame["value"].dropna().tolist()])
    state.update((n, most))
    yield pd.DataFrame({"device": [key[0]], "n": [n], "most": [most]})


def quiet(
    key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    if state.hasTimedOut:
        yield pd.DataFrame({"device": [key[0]], "n": [state.get[0]], "most": [0.0]})
        state.remove()
        return
    n = sum(map(len, frames)) + (state.get[0] if state.exists else 0)
    state.update((n, 0.0))
    state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 30_000)


class Totals(StatefulProcessor):
    """Running totals of a key, over frames."""

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "n bigint, sum double")
        self.seen = handle.getMapState("seen", "action string", "n bigint")

    def add(self, values: list[Any], actions: list[Any]) -> tuple[int, float, int]:
        n, total = self.total.get() if self.total.exists() else (0, 0.0)
        n, total = n + len(actions), total + sum(v for v in values if pd.notna(v))
        for action in filter(None, actions):
            before = self.seen.getValue((action,))[0] if self.seen.containsKey((action,)) else 0
            self.seen.updateValue((action,), (before + 1,))
        self.total.update((n, total))
        return n, total, len(list(self.seen.keys()))

    def handleInputRows(self, key: Any, rows: Iterator[Any], timers: Any) -> Iterator[Any]:
        for frame in rows:
            n, total, kinds = self.add(frame["value"].tolist(), frame["action"].tolist())
        yield pd.DataFrame({"device": [key[0]], "n": [n], "sum": [total], "kinds": [kinds]})

    def close(self) -> None:
        pass


class RowTotals(Totals):
    """The same over rows."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timers: Any) -> Iterator[Any]:
        given = list(rows)
        n, total, kinds = self.add([r.value for r in given], [r.action for r in given])
        yield Row(device=key[0], n=n, sum=total, kinds=kinds)


class Quiet(StatefulProcessor):
    """All that came of a key, once nothing has come for half an hour."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.values = handle.getListState("values", "value double")
        self.alarm = handle.getValueState("alarm", "at bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timers: Any) -> Iterator[Any]:
        at = self.alarm.get()[0] if self.alarm.exists() else 0
        for frame in rows:
            self.values.appendList([(v,) for v in frame["value"].fillna(0.0).tolist()])
            at = max(at, int(frame["ts"].max().timestamp() * 1000) + 1_800_000)
        for old in list(self.handle.listTimers()):
            self.handle.deleteTimer(old)
        self.handle.registerTimer(at)
        self.alarm.update((at,))
        return iter([])

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        found = [v for (v,) in self.values.get()]
        self.values.clear()
        yield pd.DataFrame(
            {"device": [key[0]], "n": [len(found)], "sum": [sum(found)], "kinds": [0]}
        )

    def close(self) -> None:
        pass


_TOTALS = "device string, n bigint, sum double, kinds int"


def by_function(draw: Draw) -> Query:
    """Return a query that keeps state by a function of the user's."""
    stream = events(draw, most=1)
    what = draw.one("function", ["tally", "quiet", "totals", "row totals", "timer"])
    if what in ("tally", "quiet"):
        mode = draw.one("mode", ["update", "append"]) if what == "tally" else "append"
        waits = (
            GroupStateTimeout.NoTimeout if what == "tally" else GroupStateTimeout.EventTimeTimeout
        )
        function = tally if what == "tally" else quiet

        def build(g: Given) -> DataFrame:
            return (
                stream.build(g)
                .groupBy("device")
                .applyInPandasWithState(
                    function,
                    "device string, n bigint, most double",
                    "n bigint, most double",
                    mode,
                    waits,
                )
            )

        has = {"device": "text", "n": "number", "most": "number"}
        return Query(build, mode, has, stream=True, text=f"{stream.text} | {what}")
    mode = "append" if what == "timer" else "update"

    def build_processor(g: Given) -> DataFrame:
        by = stream.build(g).select("device", "ts", "value", "action").groupBy("device")
        if not g.stream:
            # what the processors come to
            kinds = F.lit(0) if what == "timer" else F.count_distinct("action").cast("int")
            total = F.sum(F.coalesce("value", F.lit(0.0)))
            return by.agg(F.count("*").alias("n"), total.alias("sum"), kinds.alias("kinds"))
        if what == "row totals":
            return by.transformWithState(RowTotals(), _TOTALS, mode, "None")
        processor: StatefulProcessor = Totals() if what == "totals" else Quiet()
        time = "None" if what == "totals" else "EventTime"
        return by.transformWithStateInPandas(processor, _TOTALS, mode, time)

    has = {"device": "text", "n": "number", "sum": "number", "kinds": "number"}
    keys = ["device"] if mode == "update" else []
    return Query(
        build_processor,
        mode,
        has,
        keys,
        what == "timer",
        text=f"{stream.text} | {what}",
        batch=True,
    )
