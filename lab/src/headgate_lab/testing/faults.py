"""Injects faults into a query on Spark, for tests: a fault in a given slot and step.

::

    writer = hg.writeStream(counts(spark)).slots(start=2)
    faults.inject(writer, faults.kill_worker(slot=1, step=3))

A fault occurs in the middle of a slot's writes: one key group is committed, and the next is half written.
A test must check in the journal that the step was retried, since a fault that did not occur tests
nothing.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from headgate.spark.settings.query_settings import QuerySettings

Fault = dict[str, Any]


class _TakesFaults(Protocol):
    settings: QuerySettings


def raise_in(
    *,
    slot: int,
    step: int,
    attempts: int = 1,
    after: Path | None = None,
    operator: str | None = None,
) -> Fault:
    """Return a fault: the slot task raises, in the step's first `attempts` attempts.

    With `after`, the trace file of another fault, it waits until that fault has occurred.
    """
    more = {} if after is None else {"after": str(after)}
    return _fault("raise", slot, operator, step=step, attempts=attempts, **more)


def kill_worker(
    *, slot: int, step: int, attempts: int = 1, groups: int = 1, operator: str | None = None
) -> Fault:
    """Return a fault: the slot task's Python worker is killed with SIGKILL.

    With ``groups=0`` it is killed in its first key group, so that the slot may have a single one.
    """
    return _fault("kill", slot, operator, step=step, attempts=attempts, groups=groups)


def pause_worker(
    *, slot: int, step: int, until: Path, trace: Path | None = None, operator: str | None = None
) -> Fault:
    """Return a fault: the worker pauses until the file `until` exists, then writes on.

    If another slot of the attempt fails meanwhile, the step is retried and two executions of this slot
    are alive. Spark kills a failed attempt's worker after 2 s, so `until` must exist before that.

    Parameters
    ----------
    trace : Path, optional
        File that gets a line of JSON when the worker pauses, resumes and writes on.
    """
    more = {} if trace is None else {"trace": str(trace)}
    return _fault("pause", slot, operator, step=step, until=str(until), **more)


def slow(slot: int, us_per_row: float, *, from_step: int = 0, operator: str | None = None) -> Fault:
    """Return a fault: from a step on, each row that the slot serves takes `us_per_row` longer."""
    return _fault("slow", slot, operator, us_per_row=us_per_row, from_step=from_step)


def inject(writer: _TakesFaults, *faults: Fault) -> None:
    """Inject `faults` into the query that `writer` will start."""
    writer.settings = replace(writer.settings, faults=faults)


def _fault(kind: str, slot: int, operator: str | None, **fields: Any) -> Fault:
    where = {} if operator is None else {"operator": operator}
    return {"kind": kind, "slot": slot, **fields, **where}
