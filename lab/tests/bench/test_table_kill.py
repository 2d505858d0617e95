"""Killed jobs into tables: a few kills of many, see docs/benchmarks.md for fifty into each."""

from __future__ import annotations

import pytest

from headgate.core.errors import ConfigError, EngineError
from headgate_lab.bench import table_kill
from headgate_lab.bench.common import parameters
from headgate_lab.bench.kill_sinks import TABLES
from headgate_lab.testing import connectors, postgres


def _reachable(job: str) -> bool:
    """Whether the Spark that runs here has a connector for a job."""
    try:
        if "postgres" in job:
            postgres._programs()
        connectors.coordinate(job.removeprefix("merge-"))
    except EngineError:
        return False
    return True


def test_an_unknown_job_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="merge-iceberg"):
        parameters(table_kill.TableKillParameters, {"jobs": "delta,merge-icberg"})


@pytest.mark.thorough  # drivers of one job each are killed in test_tables and test_jdbc_merge
@pytest.mark.timeout(900)
def test_killed_jobs_leave_each_window_in_their_tables_once() -> None:
    jobs = tuple(filter(_reachable, TABLES))
    if not jobs:
        pytest.skip("there is no connector for this Spark, and no PostgreSQL on this machine")
    found = table_kill.run(count=4, seed=1, jobs=jobs)
    assert sum(found["kills"].values()) == 4
    assert found["ended"] == []
    for job, seen in found["jobs"].items():
        assert seen["windows"] > 0, job
        assert (seen["lost"], seen["doubled"], seen["wrong"]) == (0, 0, 0), job
