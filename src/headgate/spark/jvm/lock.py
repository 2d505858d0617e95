"""Locks a checkpoint for one driver, with a lock that the JVM holds.

After ``kill -9`` of a Python driver its JVM runs on for a second or two, in which a sink's job can still
commit. A lock of the Python process would be free at once; the JVM's lock is free when the JVM has ended.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from headgate.core.driver_lock import LOCK
from headgate.core.errors import CheckpointError
from headgate.core.input import open_regular, regular_bytes, shown
from headgate.spark.jvm.gateway import Jvm, jvm
from headgate.spark.jvm.life import JvmLife

_held: set[str] = set()
"""Locks that queries of this process hold, or are about to hold."""
_holding = threading.Lock()

_WAIT_S = 10.0
"""Longest wait for the end of a killed driver's JVM, in seconds."""


class CheckpointLock:
    """Holds a checkpoint for this driver until `release`, or until the JVM ends."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        # without symbolic links, so that one file has one name here
        self._path = Path(os.path.realpath(root)) / LOCK
        self._life = JvmLife(spark)
        java = jvm(spark)
        try:
            os.close(open_regular(self._path, os.O_CREAT | os.O_WRONLY))
        except OSError as error:
            msg = f"{shown(self._path)} cannot be locked: {error.strerror}; remove it."
            raise CheckpointError(msg) from error
        with _holding:
            if str(self._path) in _held:
                # do not open the file: closing a second channel would release the first POSIX lock
                raise CheckpointError(self._held_message())
            _held.add(str(self._path))
        try:
            self._channel = self._locked(spark, java)
        except BaseException:
            _held.discard(str(self._path))
            raise
        self._write_owner()

    def _locked(self, spark: SparkSession, java: Jvm) -> Jvm:
        """Return a file channel that holds the lock."""
        gateway: Jvm = spark.sparkContext._gateway
        options = gateway.new_array(java.java.nio.file.OpenOption, 2)
        options[0] = java.java.nio.file.StandardOpenOption.WRITE
        options[1] = java.java.nio.file.LinkOption.NOFOLLOW_LINKS
        path = java.java.io.File(str(self._path)).toPath()
        channel: Jvm = java.java.nio.channels.FileChannel.open(path, options)
        deadline = time.monotonic() + _WAIT_S
        while self._try_lock(channel) is None:
            if time.monotonic() > deadline:
                channel.close()
                raise CheckpointError(self._held_message())
            time.sleep(0.1)
        return channel

    def _write_owner(self) -> None:
        owner = {"host": socket.gethostname(), "pid": os.getpid()}
        fresh = self._path.with_suffix(f".{secrets.token_hex(8)}.tmp")
        with os.fdopen(open_regular(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY), "w") as file:
            json.dump(owner, file)
        fresh.replace(self._path.with_suffix(".owner"))  # replaces a symbolic link, too

    def _try_lock(self, channel: Jvm) -> Jvm | None:
        try:
            return channel.tryLock()
        except Py4JJavaError as error:
            if "OverlappingFileLock" in str(error):  # another query of this JVM holds the lock
                return None
            raise

    def _held_message(self) -> str:
        try:
            owner = json.loads(regular_bytes(self._path.with_suffix(".owner")))
            host, pid = shown(owner["host"], 80), shown(owner["pid"], 20)
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            host = pid = "unknown"
        if (host, pid) == (socket.gethostname(), str(os.getpid())):
            return (
                f"checkpoint {self._path.parent.parent} is held by a query of this very process that "
                "starts or ends; wait for it, or use another checkpointLocation."
            )
        return (
            f"checkpoint {self._path.parent.parent} is held by driver {host} pid {pid}; stop it first, "
            "or use another checkpointLocation."
        )

    def release(self) -> None:
        """Release the checkpoint; the end of the JVM has done so already."""
        _held.discard(str(self._path))
        try:
            self._channel.close()
        except Exception as error:
            if self._life.meaning(error) is None:
                raise
