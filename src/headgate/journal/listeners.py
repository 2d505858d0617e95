"""Tells functions of the user's each event of the journals that this process writes."""

from __future__ import annotations

import logging
from collections.abc import Callable

from headgate.journal.schema import Event

_LOG = logging.getLogger("headgate.query")
_listeners: list[Callable[[str, Event], object]] = []
_failed: set[Callable[[str, Event], object]] = set()


def on_event(listener: Callable[[str, Event], object]) -> Callable[[], None]:
    """Call a function with each event that a query or fleet of this process writes from now on.

    Parameters
    ----------
    listener : callable
        Gets the path of the journal and the event, an object of `headgate.journal` as
        ``docs/journal.md`` has it. It is called in the query's own thread, so it shall be quick; its
        first error is logged, and no error of it ends a query.

    Returns
    -------
    callable
        Ends it.

    Examples
    --------
    >>> import headgate as hg
    >>> end = hg.on_event(lambda journal, event: print(journal, event.KIND))
    >>> end()
    """
    _listeners.append(listener)

    def end() -> None:
        if listener in _listeners:
            _listeners.remove(listener)

    return end


def call_listeners(journal: str, event: Event) -> None:
    """Call the functions that were given to `on_event`.

    Parameters
    ----------
    journal : str
        Path of the journal.
    event : Event
        As it was written.
    """
    for listener in tuple(_listeners):
        try:
            listener(journal, event)
        except Exception:
            if listener not in _failed:
                _failed.add(listener)
                _LOG.exception("a function given to hg.on_event failed; the query goes on")
