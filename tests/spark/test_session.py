"""What the session of the tests promises."""

from __future__ import annotations

import sys
from typing import Any


def test_workers_run_the_same_python_as_the_driver(spark: Any) -> None:
    assert spark.sparkContext.pythonExec == sys.executable


def test_two_cores_and_no_web_page(spark: Any) -> None:
    assert spark.sparkContext.master == "local[2]"
    assert spark.sparkContext.uiWebUrl is None


def test_arrow_batches_pass_through_a_worker(spark: Any) -> None:
    seen = spark.range(10).mapInArrow(lambda batches: batches, "id long").collect()
    assert sorted(row.id for row in seen) == list(range(10))
