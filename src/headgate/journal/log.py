"""Logs the journal's main events to the driver's log, as the logger ``headgate.query``."""

from __future__ import annotations

import logging

from headgate.journal.schema import AssignmentChange, ControlAct, Event, Restart, Retry, Start, Stop

LOGGER = logging.getLogger("headgate.query")
LOGGER.addHandler(logging.NullHandler())  # a program without logging learns of errors by exceptions


def log_event(event: Event, journal: str) -> None:
    """Log starts, restarts, changes of slots, moves of key groups, retries, users' requests and ends.

    Other events are not logged.

    A failure is an error, a retry and a refused request are warnings, all else is information.

    `event`: the event as the journal has it. `journal`: path of the journal; each line ends with the
    path, which tells queries apart.
    """
    line = _line(event)
    if line is not None:
        level, text = line
        LOGGER.log(level, "%s (%s)", text, journal)


def _line(event: Event) -> tuple[int, str] | None:
    """Return level and text of an event, or None for an event that is not logged."""
    match event:
        case Start():
            name = event.name or "without a name"
            line = logging.INFO, f"query {name} started with {event.slots} slots"
        case Restart():
            line = logging.INFO, f"query goes on with step {event.step}"
        case AssignmentChange():
            line = logging.INFO, _change(event)
        case Retry():
            text = f"step {event.step}, attempt {event.attempt} failed: {event.error}"
            line = logging.WARNING, text
        case ControlAct(refused=None):
            line = logging.INFO, _order(event)
        case ControlAct():
            line = logging.WARNING, f"{_order(event)}: refused: {event.refused}"
        case Stop(error=None):
            line = logging.INFO, f"query ended: {event.reason}"
        case Stop():
            line = logging.ERROR, f"query failed: {event.error}"
        case _:
            return None
    return line


def _order(event: ControlAct) -> str:
    return " ".join(part for part in (event.act, event.detail, f"by {event.by}") if part)


def _change(event: AssignmentChange) -> str:
    what = (
        f"slots {event.slots_before} to {event.slots_after}"
        if event.slots_before != event.slots_after
        else f"{event.groups_moved} key groups moved"
    )
    whose = f" of {event.operator}" if event.operator else ""
    why = f": {event.reason}" if event.reason else ""
    return f"step {event.step}: {what}{whose}, by {event.by}{why}"
