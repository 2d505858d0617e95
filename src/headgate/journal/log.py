"""Tells the driver's log, as the logger ``headgate.query``, of the journal's events that people look for."""

from __future__ import annotations

import logging

from headgate.journal.schema import AssignmentChange, ControlAct, Event, Restart, Retry, Start, Stop

LOGGER = logging.getLogger("headgate.query")
LOGGER.addHandler(logging.NullHandler())  # a program without logging gets the same by exceptions


def tell(event: Event, journal: str) -> None:
    """Log a start, a change of slots, a retry, an order of people, and an end; other events say nothing.

    Ends by a failure are errors, retries and refused orders are warnings, all else is information.

    Parameters
    ----------
    event : Event    As it was written.
    journal : str    Path of the journal, which names the query in each line.
    """
    told = _line(event)
    if told is not None:
        level, text = told
        LOGGER.log(level, "%s (%s)", text, journal)


def _line(event: Event) -> tuple[int, str] | None:
    if isinstance(event, Start):
        return (
            logging.INFO,
            f"query {event.name or 'without a name'} started with {event.slots} slots",
        )
    if isinstance(event, Restart):
        return logging.INFO, f"query goes on with step {event.step}"
    if isinstance(event, AssignmentChange):
        return logging.INFO, _change(event)
    if isinstance(event, Retry):
        return logging.WARNING, f"step {event.step}, attempt {event.attempt} failed: {event.error}"
    if isinstance(event, ControlAct):
        text = " ".join(part for part in (event.act, event.detail, f"by {event.by}") if part)
        if event.refused is not None:
            return logging.WARNING, f"{text}: refused: {event.refused}"
        return logging.INFO, text
    if isinstance(event, Stop):
        if event.error is not None:
            return logging.ERROR, f"query failed: {event.error}"
        return logging.INFO, f"query ended: {event.reason}"
    return None


def _change(event: AssignmentChange) -> str:
    what = (
        f"slots {event.slots_before} to {event.slots_after}"
        if event.slots_before != event.slots_after
        else f"{event.groups_moved} key groups moved"
    )
    whose = f" of {event.operator}" if event.operator else ""
    why = f": {event.reason}" if event.reason else ""
    return f"step {event.step}: {what}{whose}, by {event.by}{why}"
