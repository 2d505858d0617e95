"""Tells whether Spark's JVM still lives.

A JVM that was killed answers with whatever the socket says: ``Connection refused``, ``Answer from Java
side is empty``. headgate's calls ask here for the meaning of such an error, and end with one sentence.
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
"""A dying process closes one socket after the other: how long one that still listens is believed."""

_POLL_S = 0.05
_CONNECT_S = 1.0


class JvmLife:
    """The life of the JVM that a session is in.

    What is asked is the operating system, by the address that the JVM listens at, so that it works
    whoever started whom (``spark-submit`` starts Python from the JVM), and that a paused JVM is alive.
    """

    def __init__(self, spark: SparkSession) -> None:
        gateway: Jvm = spark.sparkContext._gateway
        parameters = gateway.gateway_parameters
        self._address = (parameters.address, parameters.port)

    @property
    def is_over(self) -> bool:
        """Return whether nobody listens any more where the JVM did."""
        try:
            socket.create_connection(self._address, _CONNECT_S).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            return False  # paused, or too busy to answer
        return False

    def meaning(self, error: BaseException) -> EngineGone | None:
        """Return a clear error if the cause is the JVM's end; None for any other."""
        if isinstance(error, EngineGone):
            return error
        # what Java itself says has come from a JVM that lives
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
        """Say in one sentence that the JVM is gone, if a call within finds it so.

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
    """As `JvmLife.asked`, for calls before there is a query; raises `EngineGone`."""
    try:
        yield
    except (Py4JError, OSError) as error:
        gone = JvmLife(spark).meaning(error)
        if gone is None:
            raise
        raise gone from error
