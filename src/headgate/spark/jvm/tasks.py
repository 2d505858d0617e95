"""Reads the errors of failed tasks while Spark still retries them."""

from __future__ import annotations

from pyspark.sql import SparkSession

from headgate.spark.jvm.gateway import Jvm, each

_TASKS_MOST = 1_000
"""Most tasks of a stage that are searched for an error. Chosen, not tuned."""


def failure_of_tasks(spark: SparkSession, group: str) -> str:
    """Return the error and stack of a failed task of a job group; "" if no task has failed."""
    tracker = spark.sparkContext.statusTracker()
    context: Jvm = spark.sparkContext._jsc.sc()
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info else ():
            for task in each(context.statusStore().taskList(stage, 0, _TASKS_MOST)):
                if task.errorMessage().isDefined():
                    return str(task.errorMessage().get())
    return ""
