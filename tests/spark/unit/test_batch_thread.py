"""A batch is broken off in its thread, whatever that thread does at the moment."""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

import pytest

from headgate.spark.step.batch_thread import BatchThreads, BrokenOff


def test_a_batch_is_broken_off_from_another_thread() -> None:
    threads, begun, seen = BatchThreads(), threading.Event(), list[str]()

    def batch() -> None:
        try:
            with threads.working():
                begun.set()
                while True:
                    pass
        except BrokenOff:
            seen.append("broken off")

    thread = threading.Thread(target=batch, daemon=True)
    thread.start()
    assert begun.wait(30)
    threads.raise_in()
    thread.join(30)
    assert seen == ["broken off"]


def trace(frame: FrameType, event: str, of: Any) -> Any:
    """Trace each line, as a debugger does."""
    del frame, event, of
    return trace


@pytest.mark.parametrize("traced", [False, True])
def test_what_is_raised_too_late_is_raised_nowhere(traced: bool) -> None:
    """Under a tracer the thread never went on from there: CPython 3.11 looked out for it for ever."""
    threads, over = BatchThreads(), threading.Event()

    def batch() -> None:
        if traced:
            sys.settrace(trace)
        with threads.working():
            threads._raised.add(threading.get_ident())  # as of a batch that ends at that moment
        for _ in range(1000):
            str(threads.is_this)
        over.set()

    threading.Thread(target=batch, daemon=True).start()
    assert over.wait(30)
    assert not threads._raised
    assert not threads._ids
