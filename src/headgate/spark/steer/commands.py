"""Carries out and records users' commands to a running query, from its handle or control files."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from headgate.checkpoint.command_files import STOP, Command, CommandFiles, checked_until_s
from headgate.core.assignment import Assignment, spread
from headgate.core.duration import LONGEST_S, at_text
from headgate.core.errors import CheckpointError, ConfigError, EngineError, HeadgateError
from headgate.core.input import finite, shown
from headgate.core.slo import parse_slo
from headgate.journal import reader
from headgate.journal.schema import AssignmentChange, ControlAct, Event, Start
from headgate.loop import steering
from headgate.spark.job.changes import Changes
from headgate.spark.steer.controller import Controller

FREEZE = "HEADGATE_FREEZE"
"""Environment variable: ``1`` starts a query frozen."""


class Commands:
    """Carries out the commands to one query.

    Parameters
    ----------
    controller : Controller or None    None if the query has no SLO.
    journal : path    Journal with the past assignments.
    set_budget : callable    Sets the budget that follows from new SLOs, in seconds.
    """

    def __init__(
        self,
        files: CommandFiles,
        changes: Changes,
        controller: Controller | None,
        write: Callable[[Event], None],
        journal: Path,
        set_budget: Callable[[float | None], None],
    ) -> None:
        self.files = files
        self._changes = changes
        self._controller = controller
        self._write = write
        self._journal = journal
        self._set_budget = set_budget
        self._answered: set[str] = set()
        self._acts: Mapping[str, Callable[[Command], str]] = {
            "freeze": self._freeze,
            "thaw": self._thaw,
            "scale": self._scale,
            "rollback": self._rollback,
            "slo": self._slo,
        }

    def restore(self) -> None:
        """Restore freeze and holds of an earlier run; freeze, too, if the environment says so."""
        until_s: float | None = None
        try:
            until_s = self.files.frozen_until_s()
        except CheckpointError as error:
            aside = self.files.set_frozen_aside()
            self._refuse("freeze", f"{error} It was set aside as {aside}." if aside else str(error))
        if os.environ.get(FREEZE) == "1":
            self.do(Command("freeze", FREEZE, "set in the environment at the start"))
        elif until_s is not None:
            self._hold(until_s)
        try:
            held = self.files.held_until_s()
        except CheckpointError as error:
            self._refuse("scale", str(error))
            return
        self._keep({name: at_s for name, at_s in held.items() if at_s > time.time()})

    def poll(self) -> None:
        """Carry out the commands of control files; called at each batch, also a quiet one."""
        pending = self.files.pending()
        self._answered &= {asked.id for asked in pending}
        for asked in pending:
            if asked.id in self._answered:
                continue  # the command was carried out, but its answer could not be written
            if asked.command is not None and asked.command.act == STOP:
                continue  # the query itself stops, and answers when it has ended
            self._answered.add(asked.id)
            if asked.command is None:
                self._refuse("request", asked.problem)
                with contextlib.suppress(HeadgateError):
                    self.files.refuse(asked.id, asked.problem)
                continue
            refused: str | None = None
            detail = ""
            try:
                detail = self.do(asked.command)
            except HeadgateError as error:
                refused = str(error)
            with contextlib.suppress(HeadgateError):
                self.files.write_answer(asked.id, refused, detail)

    def do(self, command: Command) -> str:
        """Carry out a command, and write it into the journal with author and reason; return details.

        Raises `HeadgateError`: the command is refused; the journal says so, too.
        """
        try:
            detail = self._acts[command.act](command)
        except HeadgateError as error:
            self._note(command, "", str(error))
            raise
        self._note(command, detail, None)
        return detail

    def _refuse(self, act: str, why: str) -> None:
        """Write into the journal that a control file could not be read."""
        self._write(ControlAct(act, "a control file", refused=why))

    def _note(self, command: Command, detail: str, refused: str | None) -> None:
        with contextlib.suppress(
            EngineError
        ):  # the query may end meanwhile, and its journal is closed
            self._write(ControlAct(command.act, command.by, command.reason, detail, refused))

    def _freeze(self, command: Command) -> str:
        until_s = checked_until_s(command.arguments.get("until_s"))
        self.files.freeze(until_s)
        self._hold(math.inf if until_s is None else until_s)
        return "until thawed" if until_s is None else f"until {until_s:.0f} s since 1970"

    def _hold(self, until_s: float) -> None:
        given_up = self._changes.freeze(until_s)
        if self._controller is not None:
            self._controller.freeze(until_s, given_up)

    def _thaw(self, command: Command) -> str:
        self.files.thaw()
        self._changes.thaw()
        if self._controller is not None:
            self._controller.thaw()
        if self._changes.holds():
            self._keep({})
        return ""

    def _scale(self, command: Command) -> str:
        slots = _whole(command.arguments, "slots")
        operator = _text(command.arguments, "operator")
        changes = self._changes
        changes.check_operator(operator)
        partitioning = _text(command.arguments, "partitioning") or "minimal"
        hold_s = _hold_s(command.arguments, self._controller)
        wanted = changes.scaled(slots, operator, partitioning)
        changes.ask(wanted, command.by, command.reason)
        size = f"{slots} slots" + (f" of {operator}" if operator else "")
        others = {name: at_s for name, at_s in changes.holds().items() if name not in wanted}
        if hold_s is not None:
            until_s = time.time() + hold_s
            self._keep(others | dict.fromkeys(wanted, until_s))
            return f"{size}, held until {at_text(until_s)}"
        self._keep(others)
        if self._controller is None or not self._controller.acts:
            return size
        return (
            f"{size}; policy {self._controller.policy} may change that from the next batch on, unless "
            'they are held: hold="10 min", or headgate scale --hold 10min'
        )

    def _keep(self, until_s: Mapping[str, float]) -> None:
        """Hold the number of operators' slots, and store the hold for a restart."""
        if until_s or self._changes.holds():
            self.files.hold(until_s)
        self._changes.hold(until_s)
        if self._controller is not None:
            self._controller.hold(until_s)

    def _slo(self, command: Command) -> str:
        if self._controller is None:
            msg = "this query was started without an SLO; restart it with .slo(...)."
            raise ConfigError(msg)
        slos = [parse_slo(s) if isinstance(s, str) else s for s in command.arguments["slos"]]
        self._controller.judge_by(slos)
        self._set_budget(steering.budget_s(slos))
        return "; ".join(str(slo) for slo in slos)

    def _rollback(self, command: Command) -> str:
        epoch = _whole(command.arguments, "epoch")
        past = () if self._changes.knows(epoch) else self._journalled()
        before = self._changes.at(epoch, past)
        self._changes.ask(before, command.by, command.reason or f"back to epoch {epoch}")
        slots = ", ".join(f"{name} {a.slots}" for name, a in before.items())
        return f"to epoch {epoch}: {slots} slots"

    def _journalled(self) -> Iterator[tuple[int, dict[str, Assignment]]]:
        """Read past assignments from the journal; only on demand, since a journal may be long."""
        first = True
        for event in reader.read(self._journal):
            if isinstance(event, Start) and first:
                first = False
                begun = spread(event.slots, event.key_groups)
                yield 0, {operator.id: begun for operator in event.operators}
            elif isinstance(event, AssignmentChange) and event.slot_of:
                split = {group: tuple(shares) for group, *shares in event.split}
                held = Assignment(event.slot_of, event.slots_after, event.epoch, split)
                yield event.epoch, {event.operator: held}


def _hold_s(arguments: Mapping[str, Any], controller: Controller | None) -> float | None:
    """Return the duration of a command's hold, in seconds; None without a hold."""
    hold_s = arguments.get("hold_s")
    if hold_s is None:
        return None
    if controller is None:
        msg = "this query has no policy that would change its slots; leave the hold out."
        raise ConfigError(msg)
    if not isinstance(hold_s, int | float) or isinstance(hold_s, bool):
        msg = f"hold_s={shown(repr(hold_s), 60)} is no time; use seconds."
        raise ConfigError(msg)
    return float(finite(hold_s, "the hold", 0.0, LONGEST_S))


def _whole(arguments: Mapping[str, Any], name: str) -> int:
    value = arguments.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        msg = f"{name}={shown(repr(value), 60)} is not a whole number."
        raise ConfigError(msg)
    return value


def _text(arguments: Mapping[str, Any], name: str) -> str | None:
    value = arguments.get(name)
    if value is not None and not isinstance(value, str):
        msg = f"{name}={shown(repr(value), 60)} is no name; write it as text."
        raise ConfigError(msg)
    return value
