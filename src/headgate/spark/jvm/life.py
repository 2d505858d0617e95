"""Finds out whether Spark's JVM still runs.

Calls to a killed JVM fail with errors of the socket: ``Connection refused``, ``Answer from Java side is
empty``. This module turns such an error into an `EngineGone` of one sentence.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from headgate.core.errors import EngineGone
from headgate.spark.jvm.gateway import Jvm

GONE = (
    "Spark's JVM is gone: it was killed, or it crashed, and the queries in it with it; start the job "
    "again, and it continues from its checkpoint."
)

_GRACE_S = 2.0
"""Longest wait for the JVM's port to close after an error, in seconds; a killed process closes its
sockets one by one."""

_POLL_S = 0.05
_CONNECT_S = 1.0


class JvmLife:
    """Checks whether the JVM of a session still runs.

    It connects to the JVM's port. So it also works if the JVM started Python (``spark-submit``), and a
    paused JVM counts as running.
    """

    def __init__(self, spark: SparkSession) -> None:
        gateway: Jvm = spark.sparkContext._gateway
        parameters = gateway.gateway_parameters
        self._address = (parameters.address, parameters.port)

    @property
    def is_over(self) -> bool:
        """Return whether no process listens on the JVM's port any more."""
        try:
            socket.create_connection(self._address, _CONNECT_S).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            return False  # paused, or too busy to answer
        return False

    def meaning(self, error: BaseException) -> EngineGone | None:
        """Return an `EngineGone` if the cause of `error` is the JVM's end; None otherwise."""
        if isinstance(error, EngineGone):
            return error
        # an exception of Java's comes from a running JVM
        if isinstance(error, Py4JJavaError) or not isinstance(error, Py4JError | OSError):
            return None
        until_s = time.monotonic() + _GRACE_S
        while not self.is_over:
            if time.monotonic() > until_s:
                return None
            time.sleep(_POLL_S)
        gone = EngineGone(GONE)
        gone.__cause__ = error
        return gone

    @contextmanager
    def asked(self) -> Iterator[None]:
        """Turn errors of calls within the context into `EngineGone` if the JVM has ended.

        Raises `EngineGone`.
        """
        try:
            yield
        except Exception as error:
            gone = self.meaning(error)
            if gone is None:
                raise
            raise gone from error


@contextmanager
def asked(spark: SparkSession) -> Iterator[None]:
    """As `JvmLife.asked`, for calls before the query exists; raises `EngineGone`."""
    try:
        yield
    except (Py4JError, OSError) as error:
        gone = JvmLife(spark).meaning(error)
        if gone is None:
            raise
        raise gone from error
