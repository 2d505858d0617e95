"""Rows with equal exact columns are matched where their numbers are near; here without Spark."""

from __future__ import annotations

import pyarrow as pa

from headgate.spark.worker.nearness import Nearness


def left_over(*rows: tuple[int, list[float], list[float]]) -> list[tuple[int, int]]:
    """Return (net, number of the row) of what is left over of rows of (net, values, sums)."""
    net, values, sums = zip(*rows, strict=True)
    group = pa.table({"net": net, "values": values, "sums": sums, "cells": list(range(len(rows)))})
    near = Nearness(("values", "sums"), relative=(0.1, 0.0), floor=(0.0, 0.5))
    found = near.left_over(group)
    return list(zip(*(found[name].to_pylist() for name in ("net", "cells")), strict=True))


def test_each_column_has_a_tolerance_of_its_own() -> None:
    near, far = [105.0, 100.0], [105.0, 120.0]
    assert left_over((1, [100.0, 100.0], [7.0]), (-1, near, [7.4])) == []
    assert left_over((1, [100.0, 100.0], [7.0]), (-1, far, [7.4])) == [(1, 0), (-1, 1)]
    assert left_over((1, [100.0, 100.0], [7.0]), (-1, near, [7.6])) == [(1, 0), (-1, 1)]


def test_a_row_that_is_wanted_several_times_has_as_many_partners() -> None:
    wanted = (3, [1.0, 1.0], [0.0])
    assert left_over(wanted, (-2, [1.0, 1.05], [0.1])) == [(1, 0)]
    assert left_over(wanted, (-2, [1.0, 1.05], [0.1]), (-2, [1.02, 1.0], [0.0])) in (
        [(-1, 1)], [(-1, 2)],
    )  # fmt: skip
    assert left_over(wanted) == [(3, 0)]
