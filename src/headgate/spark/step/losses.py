"""Finds slots whose executor or Python worker was lost, as far as the driver can learn of it.

Nothing is repaired here: a lost task runs again under the assignment of its step. A Spark listener for
executors names no slots, and Spark's status store forgets tasks, so reports of tasks are asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from pyspark import SparkContext

from headgate.spark.job.reports import Report
from headgate.spark.jvm.errors import text_of
from headgate.spark.worker.failure import is_lost_worker

_TASK = re.compile(r"[Ll]ost task (\d+)\.\d+ in stage (\d+)\.")
"""How Spark names the task that a job failed with: its partition, which is a slot's number, and stage."""

_GROUP = "spark.jobGroup.id"
"""Local property: which jobs are a query's."""

Lost = list[tuple[str, int]]
"""Operators and slots."""


class Losses:
    """Tells which slots were lost, between two steps or in the midst of one.

    Where Spark gives a job up with its first failed task (``local``), the attempt fails and says which
    task it was. On a cluster Spark runs the task again and says nothing to the driver's code; then the
    slot's report comes from a second try, or, where nothing was running when an executor went, from
    another daemon of Python workers than the last one, which serves nobody any more.

    `executors`: returns the ids of the living executors; none where Spark is local. `stages`:
    returns the numbers of all stages of the job that a stage belonged to, ascending; none where
    Spark has forgotten it.
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

        The job of a chain has a stage for each of its operators, in their order, and before them those
        that deal rows to slots. A task that was lost there is no slot's.

        `chains`: how many slots each operator of each chain has, in the order in which they run.
        `reports`: reports of this attempt that arrived nevertheless.
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
        """Return whose slots ran in a stage of which no task reported; None for nobody's."""
        reported = {(report.operator, report.slot) for report in reports}
        for chain in chains:  # one runs after the other
            if any((name, slot) not in reported for name in chain for slot in range(chain[name])):
                # those of the operators are the job's last stages
                last = reversed(list(self._stages(stage)))
                of_operators = dict(zip(last, reversed(list(chain)), strict=False))
                return of_operators.get(stage)
        return None

    def in_step(self, reports: Sequence[Report]) -> Lost:
        """Return the slots that were lost since the last step was committed, though this one was."""
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
    """Return a function for the stages of a stage's job; only the batches' thread may call it."""
    tracker = context.statusTracker()

    def stages(stage: int) -> list[int]:
        jobs = tracker.getJobIdsForGroup(context.getLocalProperty(_GROUP))
        for job in sorted(jobs, reverse=True):
            known = tracker.getJobInfo(job)
            if known is not None and stage in known.stageIds:
                return sorted(known.stageIds)
        return []

    return stages
