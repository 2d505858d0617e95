"""A Spark session with the settings that keep a small batch small."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from headgate.core.errors import HeadgateError


@dataclass(frozen=True)
class Setting:
    """A Spark setting that headgate asks for.

    Attributes
    ----------
    key, value : str
    why : str
        What it buys, measured on a tiny batch where a time is given.
    running : bool
        True where it can be set in a session that runs already.
    local_only : bool
        True where it is meant for checkpoints on a local disk.
    """

    key: str
    value: str
    why: str
    running: bool = False
    local_only: bool = False


SETTINGS = (
    Setting(
        "spark.python.unix.domain.socket.enabled",
        "true",
        "about 40 ms less per batch than TCP between the JVM and its Python workers",
    ),
    Setting(
        "spark.python.daemon.module",
        "headgate.engines.spark.daemon",
        "new Python workers start with NumPy, Arrow and the kernels loaded",
    ),
    Setting(
        "spark.sql.streaming.checkpointFileManagerClass",
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager",
        "Spark's own logs take 27 instead of 82 ms per batch: no fork per log file",
        running=True,
        local_only=True,
    ),
    Setting(
        "spark.python.sql.dataFrameDebugging.enabled",
        "false",
        "no stack trace is taken for every DataFrame call of a batch",
    ),
    Setting(
        "spark.sql.execution.arrow.maxRecordsPerBatch",
        "65536",
        "fewer, larger Arrow batches into the slots",
        running=True,
    ),
)

_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    # For the jobs of a fleet, each in a pool of its own; without pools it is first in, first out.
    "spark.scheduler.mode": "FAIR",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def session(
    master: str | None = None, name: str = "headgate", **config: str | int | bool
) -> SparkSession:
    """Return a Spark session with headgate's settings.

    Parameters
    ----------
    master : str or None
        As ``SparkSession.builder.master``; None keeps what the environment says, or ``local[*]``.
    name : str
        Application name.
    **config
        Spark settings with ``_`` for ``.``'s place taken as is: pass a dict with ``**{...}``. They win
        over headgate's.

    Raises
    ------
    HeadgateError
        Java is missing or older than 17.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    _require_java()
    builder = SparkSession.builder.appName(name)
    builder = builder.master(master or os.environ.get("SPARK_MASTER", "local[*]"))
    wanted = {**_DEFAULTS, **{s.key: s.value for s in SETTINGS}}
    wanted |= {key: str(value) for key, value in config.items()}
    for key, value in wanted.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def advice(spark: SparkSession, location: str) -> str | None:
    """Return one line naming the settings that `spark` lacks, or None.

    Settings that can be changed in a running session, and that its user left alone, are changed here.

    Parameters
    ----------
    spark : SparkSession
    location : str
        Of a query's checkpoint.
    """
    missing = []
    for setting in SETTINGS:
        if setting.local_only and "://" in location.removeprefix("file://"):
            continue
        # no other default: Spark demands that it be a value of the setting's type
        found = spark.conf.get(setting.key, None)
        if found == setting.value:
            continue
        if not setting.running:
            missing.append(setting.key)
        elif found is None:
            spark.conf.set(setting.key, setting.value)
    if not missing:
        return None
    return f"batches would be faster with hg.session(), which also sets {', '.join(missing)}."


_JAVA_OLDEST = 17
_JAVA_WAIT_S = 30.0
_JAVA_REMEDY = "install one (Debian: apt-get install openjdk-17-jre-headless)"


def _require_java() -> None:
    """Raise HeadgateError unless the Java that Spark will start is new enough."""
    if SparkContext._gateway is not None:
        return  # this process has a JVM already, and Spark took it
    java = _find_java()
    if java is None:
        msg = (
            f"Spark needs Java {_JAVA_OLDEST} or newer and there is no java on PATH or in JAVA_HOME; "
            f"{_JAVA_REMEDY}."
        )
        raise HeadgateError(msg)
    version = _java_version(java)
    if version is not None and version < _JAVA_OLDEST:
        msg = (
            f"Spark needs Java {_JAVA_OLDEST} or newer and {java} is Java {version}; "
            f"{_JAVA_REMEDY}, or set JAVA_HOME to a newer one."
        )
        raise HeadgateError(msg)


def _find_java() -> Path | None:
    """Return the java that Spark's launcher takes: JAVA_HOME wins over PATH."""
    home = os.environ.get("JAVA_HOME")
    if home:
        found = [Path(home) / "bin" / "java"]
    else:
        found = [Path(p) / "java" for p in os.environ.get("PATH", "").split(os.pathsep) if p]
    return next((p for p in found if p.is_file() and os.access(p, os.X_OK)), None)


def _java_version(java: Path) -> int | None:
    """Return the major version that ``java -version`` names, None if it says nothing we know."""
    try:
        run = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_WAIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', run.stderr + run.stdout)
    return int(found[1]) if found else None
