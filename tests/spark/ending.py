"""How a test reads a stream of headgate's own sources to its end, on every minor of Spark."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from headgate.spark.jvm.datasources import LIMITS


def ending(writer: Any) -> Any:
    """Start a query, also one of plain Spark, that ends when it has read what there is."""
    if LIMITS:
        return writer.trigger(availableNow=True).start()
    # there availableNow takes one batch of a Python source
    query = writer.trigger(processingTime="0 seconds").start()

    def end() -> None:
        with contextlib.suppress(Exception):  # what fails is the query's to say
            query.processAllAvailable()
        query.stop()

    threading.Thread(target=end, daemon=True).start()
    return query
