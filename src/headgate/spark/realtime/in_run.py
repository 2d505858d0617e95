"""Has the tasks of a pipe meet the driver of the run that they belong to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark import TaskContext

from headgate.spark.realtime.feeder import Feeder
from headgate.spark.realtime.router import Router

RUN = "headgate.realtime.run"
"""Property of a job: its run, as `words.Meeting.told` has it."""


@dataclass(frozen=True)
class InRun:
    """The function that `mapInArrow` runs: a feeder or router of the run of its task.

    Attributes
    ----------
    made : Feeder or Router
        With the meeting of the query, since the plan that holds it serves all runs.
    """

    made: Feeder | Router

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Do what it does until the run is over."""
        context = TaskContext.get()
        assert context is not None
        told = context.getLocalProperty(RUN)
        assert told is not None
        return replace(self.made, meeting=self.made.meeting.of_told(told))(batches)
