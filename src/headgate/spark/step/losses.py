"""Slots whose executor or Python worker was lost: what the driver can learn of it, and when."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from headgate.spark.job.reports import Report
from headgate.spark.worker.failure import is_lost_worker

_TASK = re.compile(r"[Ll]ost task (\d+)\.")
"""How Spark names the task that a job failed with: by its partition, which is a slot's number."""

Lost = list[tuple[str, int]]
"""Operators and slots."""


class Losses:
    """Tells which slots were lost, between two steps or in the midst of one.

    Where Spark gives a job up with its first failed task (``local``), the attempt fails and says which
    task it was. On a cluster Spark runs the task again and says nothing to the driver's code; then the
    slot's report comes from a second try, or, where nothing was running when an executor went, from
    another daemon of Python workers than the last one, which serves nobody any more.

    Parameters
    ----------
    executors : callable
        Returns the ids of the living executors; none where Spark is local.
    """

    def __init__(self, executors: Callable[[], frozenset[str]]) -> None:
        self._executors = executors
        self._living = executors()
        self._ran: dict[tuple[str, int], str] = {}

    def in_attempt(
        self, error: Exception, slots: Mapping[str, int], reports: Sequence[Report]
    ) -> Lost:
        """Return the slots that a failed attempt of a step lost.

        Parameters
        ----------
        error : Exception
            What it ended with.
        slots : mapping of str to int
            How many each operator has.
        reports : sequence of Report
            What came of this attempt all the same.
        """
        task = _TASK.search(str(error))
        if task is None or not is_lost_worker(error):
            return []
        slot, reported = int(task[1]), {(report.operator, report.slot) for report in reports}
        there = [(name, slot) for name, count in slots.items() if slot < count]
        return [one for one in there if one not in reported]

    def in_step(self, reports: Sequence[Report]) -> Lost:
        """Return the slots that were lost since the last step was committed, though this one was."""
        living = self._executors()
        vanished, self._living = self._living - living, living
        serving = {report.daemon for report in reports}
        before = self._ran
        self._ran = {(report.operator, report.slot): report.daemon for report in reports}
        lost = {(report.operator, report.slot) for report in reports if report.tries > 0}
        if vanished:
            lost |= {one for one, daemon in before.items() if daemon and daemon not in serving}
        return sorted(one for one in lost if one in self._ran)
