"""Connects the tasks of a pipe to the driver of their run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark import TaskContext

from headgate.spark.realtime.feeder import Feeder
from headgate.spark.realtime.router import Router

RUN = "headgate.realtime.run"
"""Local property of a job: its run, in the form of `words.Meeting.told`."""


@dataclass(frozen=True)
class InRun:
    """Runs a feeder or router in the run of its task; the function that `mapInArrow` runs.

    Attributes
    ----------
    made : Feeder or Router
        With the meeting of the query, because one plan serves all runs.
    """

    made: Feeder | Router

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the feeder or router until the run ends."""
        context = TaskContext.get()
        assert context is not None
        told = context.getLocalProperty(RUN)
        assert told is not None
        return replace(self.made, meeting=self.made.meeting.of_told(told))(batches)
