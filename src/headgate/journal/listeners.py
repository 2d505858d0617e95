"""Calls the user's functions with each event of the journals that this process writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headgate.core.errors import require
from headgate.journal.log import LOGGER
from headgate.journal.schema import Event


@dataclass(eq=False)
class _Listener:
    """Holds a function, and whether its first error was logged."""

    call: Callable[[str, Event], object]
    has_failed: bool = False


_listeners: list[_Listener] = []


def on_event(listener: Callable[[str, Event], object]) -> Callable[[], None]:
    """Call a function with each event that a query or fleet of this process writes from now on.

    Parameters
    ----------
    listener : callable
        Receives the path of the journal and the event, an object of `headgate.journal` (see
        ``docs/journal.md``). The query's own thread calls the function, so it must be quick. Its first
        error is logged, and no error of the function ends a query.

    Returns
    -------
    callable
        Ends the calls.

    Examples
    --------
    >>> import headgate as hg
    >>> end = hg.on_event(lambda journal, event: print(journal, event.KIND))
    >>> end()
    """
    require(
        callable(listener), "hg.on_event: listener", listener, "a function of a path and an event"
    )
    entry = _Listener(listener)
    _listeners.append(entry)

    def end() -> None:
        if entry in _listeners:
            _listeners.remove(entry)

    return end


def call_listeners(journal: str, event: Event) -> None:
    """Call the functions of `on_event`.

    `journal`: path of the journal. `event`: the event as it was written.
    """
    for listener in tuple(_listeners):
        try:
            listener.call(journal, event)
        except Exception:
            if not listener.has_failed:
                listener.has_failed = True
                LOGGER.exception("a function given to hg.on_event failed; the query goes on")
