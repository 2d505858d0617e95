"""Finds slots that lost their executor or Python worker, from reports and errors in the driver.

This module repairs nothing: a lost task runs again under the assignment of its step. A Spark listener for
executors names no slots, and Spark's status store forgets tasks, so the tasks' reports serve instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from pyspark import SparkContext

from headgate.spark.job.reports import Report
from headgate.spark.jvm.errors import text_of
from headgate.spark.worker.failure import is_lost_worker

_TASK = re.compile(r"[Ll]ost task (\d+)\.\d+ in stage (\d+)\.")
"""Matches the task in the error of a failed job: its partition, which is the slot's number, and stage."""

_GROUP = "spark.jobGroup.id"
"""Local property with the job group of a query."""

Lost = list[tuple[str, int]]
"""Operators and slots."""


class Losses:
    """Finds the slots that were lost between two steps or in a step.

    With the master ``local`` the first failed task fails the job, and the error names the task. On a
    cluster Spark runs the task again, and the driver's code sees no error; then the slot's report has an
    attempt number above 0. If an executor ended between two steps, the slot's report names another
    daemon of Python workers than before, and no report names the old daemon.

    `executors`: returns the ids of the living executors; none if Spark is local. `stages`: returns
    the ids of all stages of a stage's job, ascending; none if Spark has forgotten the job.
    """

    def __init__(
        self,
        executors: Callable[[], frozenset[str]],
        stages: Callable[[int], Sequence[int]] = lambda _: (),
    ) -> None:
        self._executors = executors
        self._stages = stages
        self._living = executors()
        self._ran: dict[tuple[str, int], str] = {}

    def in_attempt(
        self,
        error: Exception,
        chains: Sequence[Mapping[str, int]],
        reports: Sequence[Report],
    ) -> Lost:
        """Return the slots that a failed attempt of a step lost.

        The job of a chain ends with one stage for each of its operators, in their order. The stages
        before route rows, and their tasks belong to no slot.

        `chains`: number of slots by operator, one mapping per chain, in the order in which chains run.
        `reports`: reports of this attempt that arrived before the failure.
        """
        task = _TASK.search(text_of(error))
        if task is None or not is_lost_worker(error):
            return []
        slot, stage = int(task[1]), int(task[2])
        operator = next((report.operator for report in reports if report.stage == stage), None)
        if operator is None:
            operator = self._of_stage(stage, chains, reports)
        slots = {name: count for chain in chains for name, count in chain.items()}
        return [] if operator is None or slot >= slots[operator] else [(operator, slot)]

    def _of_stage(
        self, stage: int, chains: Sequence[Mapping[str, int]], reports: Sequence[Report]
    ) -> str | None:
        """Return the operator of a stage of which no task reported; None if it has no operator."""
        reported = {(report.operator, report.slot) for report in reports}
        for chain in chains:  # chains run one after the other: the first incomplete chain failed
            if any((name, slot) not in reported for name in chain for slot in range(chain[name])):
                # the operators' stages are the job's last ones
                last = reversed(list(self._stages(stage)))
                of_operators = dict(zip(last, reversed(list(chain)), strict=False))
                return of_operators.get(stage)
        return None

    def in_step(self, reports: Sequence[Report]) -> Lost:
        """Return the slots that were lost since the last committed step; this step is committed, too."""
        living = self._executors()
        vanished, self._living = self._living - living, living
        serving = {report.daemon for report in reports}
        before = self._ran
        self._ran = {(report.operator, report.slot): report.daemon for report in reports}
        lost = {(report.operator, report.slot) for report in reports if report.tries > 0}
        if vanished:
            lost |= {slot for slot, daemon in before.items() if daemon and daemon not in serving}
        return sorted(slot for slot in lost if slot in self._ran)


def stages_beside(context: SparkContext) -> Callable[[int], list[int]]:
    """Return a function from a stage to its job's stages; only the batches' thread may call it."""
    tracker = context.statusTracker()

    def stages(stage: int) -> list[int]:
        jobs = tracker.getJobIdsForGroup(context.getLocalProperty(_GROUP))
        for job in sorted(jobs, reverse=True):
            known = tracker.getJobInfo(job)
            if known is not None and stage in known.stageIds:
                return sorted(known.stageIds)
        return []

    return stages
