"""Implements the user's handle of a running query of stateful operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from pyspark.sql.streaming.query import StreamingQuery

from headgate.checkpoint.command_files import Command
from headgate.core.assignment import Assignment
from headgate.core.duration import parse_duration_s
from headgate.core.errors import require
from headgate.core.slo import Slo
from headgate.journal.schema import Decided
from headgate.spark.api.running import RunningQuery
from headgate.spark.job.reports import Report
from headgate.spark.settings.arguments import note
from headgate.spark.steer.commands import Commands
from headgate.spark.steer.controller import Controller
from headgate.spark.steer.operator_slots import OperatorSlots
from headgate.spark.step.machine import StepMachine
from headgate.spark.step.stateful import StatefulWork


class Query(RunningQuery[Report]):
    """A running query whose slots the user can change; `Writer.start` returns it."""

    def __init__(
        self,
        inner: StreamingQuery,
        machine: StepMachine[Report],
        work: StatefulWork,
        controller: Controller | None,
        commands: Commands,
        *,
        finite: bool,
        release: Callable[[], None],
    ) -> None:
        self._work = work
        self._controller = controller
        self._commands = commands
        self._slots = OperatorSlots(work.changes, controller, work.recorder.write)
        super().__init__(
            inner,
            machine,
            work.recorder,
            control=commands.files,
            finite=finite,
            release=release,
        )

    def __repr__(self) -> str:
        slots = ", ".join(
            f"{name} {assignment.slots} slots" for name, assignment in self.assignment().items()
        )
        return (
            super().__repr__().replace(", journal", f", {slots}, journal" if slots else ", journal")
        )

    def scale(
        self,
        slots: int,
        *,
        operator: str | None = None,
        partitioning: Literal["minimal", "uniform"] = "minimal",
        by: str = "user",
        reason: str = "",
        hold: str | None = None,
    ) -> str:
        """Change the number of slots from the next batch boundary on; return a sentence about the effect.

        State that changes host moves by the strategy of `Writer.migration`; other state is not copied.
        Without `hold` a policy may change the number again from the next batch on; the sentence says so.

        Parameters
        ----------
        slots : int
            1 to the number of key groups.
        operator : str, optional
            Id of one operator; None for all operators.
        partitioning : "minimal" or "uniform"
            minimal: move as few key groups as balance allows. uniform: give each slot a contiguous range
            of key groups, as Flink does.
        by, reason : str
            Who changes the slots, and why; written to the journal.
        hold : str, optional
            How long no policy and no fleet may change the number, such as ``10 min``; a restart keeps
            the hold. The next `scale`, or `thaw`, ends it.

        Raises
        ------
        ConfigError
            `slots` or `hold` is out of range, the assignment is frozen, or there is no policy to hold.
        HeadgateError
            The query has ended.
        """
        _check_notes(by, reason)
        hold_s = None if hold is None else parse_duration_s(hold)
        arguments = {"operator": operator, "partitioning": partitioning, "hold_s": hold_s}
        return self._do(Command("scale", by, reason, {"slots": slots, **arguments}))

    def remap(
        self,
        changes: Mapping[int, int],
        *,
        operator: str | None = None,
        by: str = "user",
        reason: str = "",
    ) -> None:
        """Move key groups to other slots at the next batch boundary.

        Parameters
        ----------
        changes : mapping of int to int
            Key group -> slot.

        Raises
        ------
        ConfigError
            There is no such key group or slot, or the assignment is frozen.
        HeadgateError
            The query has ended.
        """
        _check_notes(by, reason)
        whole = isinstance(changes, Mapping) and all(
            isinstance(number, int) for pair in changes.items() for number in pair
        )
        require(
            whole, "remap: changes", changes, "a mapping of key groups to slots, such as {0: 1}"
        )
        self._end.refuse_if_over("remap")
        self._work.changes.check_operator(operator)
        names = [operator] if operator else list(self._work.states)
        held = self._work.changes
        held.ask({name: held.newest(name).remap(changes) for name in names}, by, reason)

    def assignment(self) -> dict[str, Assignment]:
        """Return the assignment of each operator."""
        return self._work.changes.assignment()

    def freeze(self) -> None:
        """Forbid changes of the assignment until `thaw`, also over a restart."""
        self._do(Command("freeze", "user"))

    def thaw(self) -> None:
        """Allow changes of the assignment again; this also ends the holds of `scale`."""
        self._do(Command("thaw", "user"))

    def rollback(self, epoch: int, *, reason: str = "") -> None:
        """Go back to the assignments of an earlier epoch; state never goes back.

        Raises
        ------
        ConfigError
            The epoch is unknown, or the assignment is frozen.
        """
        _check_notes("user", reason)
        self._do(Command("rollback", "user", reason, {"epoch": epoch}))

    def slo(self, *slos: str | Slo) -> None:
        """Replace the query's SLOs from its next batch on.

        The budget "auto" changes with the SLO.

        Raises
        ------
        ConfigError
            A text is no SLO, the query had no SLO, or the new SLOs name other operators than before.
        """
        self._do(Command("slo", "user", "", {"slos": slos}))

    def _do(self, command: Command) -> str:
        self._end.refuse_if_over(command.act)
        return self._commands.do(command)

    def decisions(self) -> list[Decided]:
        """Return the last decisions of the query's policy, oldest first."""
        return self._controller.decisions() if self._controller is not None else []

    def _before_end(self) -> None:
        self._work.migrations.stop()
        if self._controller is not None:
            self._controller.stop()


def _check_notes(by: str, reason: str) -> None:
    """Refuse texts that the journal cannot hold, before a change."""
    note("by", by)
    note("reason", reason)
