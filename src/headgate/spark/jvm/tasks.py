"""Asks what tasks failed with, while Spark's job still tries them again."""

from __future__ import annotations

from pyspark.sql import SparkSession

from headgate.spark.jvm.gateway import Jvm, each

_TASKS_MOST = 1_000


def failure_of_tasks(spark: SparkSession, group: str) -> str:
    """Return what a task of a job group failed with, with its stack; "" if none has."""
    tracker = spark.sparkContext.statusTracker()
    context: Jvm = spark.sparkContext._jsc.sc()
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info else ():
            for task in each(context.statusStore().taskList(stage, 0, _TASKS_MOST)):
                if task.errorMessage().isDefined():
                    return str(task.errorMessage().get())
    return ""
