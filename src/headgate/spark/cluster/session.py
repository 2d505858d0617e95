"""Makes a Spark session with the settings that keep a small batch small."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from pyspark import SparkConf
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headgate.core.errors import ConfigError, HeadgateError, require
from headgate.core.frames import users_level
from headgate.core.quiet import quiet_stderr
from headgate.spark.cluster.interpreter import check_interpreter
from headgate.spark.cluster.sockets import socket_directory
from headgate.spark.jvm.sessions import PIPELINED, has_jvm, is_running, start_jvm


@dataclass(frozen=True)
class Setting:
    """Holds a Spark setting that headgate asks for."""

    key: str
    value: str
    why: str
    """Benefit of the setting; times were measured on a tiny batch."""
    running: bool = False
    """Whether the setting can be changed in a running session."""
    local_only: bool = False
    """Whether the setting is only for checkpoints on a local disk."""


_UNIX_SOCKETS = "spark.python.unix.domain.socket.enabled"
_SOCKET_DIRECTORY = "spark.python.unix.domain.socket.dir"
_DAEMON = "spark.python.daemon.module"
_SOCKET_TIMEOUT_S = 120
_WRITABLE_BY_OTHERS = 0o022

SETTINGS = (
    Setting(
        _UNIX_SOCKETS,
        "true",
        "about 40 ms less per batch than TCP between the JVM and its Python workers",
    ),
    Setting(
        _DAEMON,
        "headgate.spark.worker.daemon",
        "new Python workers start with NumPy, Arrow and the kernels loaded",
    ),
    Setting(
        "spark.python.authenticate.socketTimeout",
        f"{_SOCKET_TIMEOUT_S}s",
        "a busy machine has 120 instead of 15 s until Python and the JVM have met",
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

_PARTITIONS = "spark.sql.shuffle.partitions"
_SPARKS_PARTITIONS = "200"
_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    _PARTITIONS: "4",
    # For the jobs of a fleet, each in its own pool; jobs without a pool run first in, first out.
    "spark.scheduler.mode": "FAIR",
}
_HERE = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""Settings if all of Spark is on this machine."""

_SHELL = "pyspark-shell"
"""Spark's name for an application that was started without spark-submit."""

_launched_with: dict[str, str] = {}
"""Settings with which this process started its JVM; Spark then takes them for the submit command's."""

_warned: set[str] = set()
"""Kinds of advice that this process has already given."""


def session(
    master: str | None = None, name: str | None = None, **config: str | int | bool
) -> SparkSession:
    """Return a Spark session with headgate's settings.

    The arguments have priority, then settings of spark-submit, ``spark-defaults.conf`` or the cluster.
    headgate sets only settings that have none of these.

    Parameters
    ----------
    master : str or None
        As ``SparkSession.builder.master``; None for the master of spark-submit or ``SPARK_MASTER``, or
        else ``local[*]``.
    name : str or None
        Application name; None for the name of spark-submit, or else ``headgate``.
    **config
        Spark settings by their names; since names have dots, pass a dict with ``**{...}``.

    Raises
    ------
    HeadgateError
        Java is missing or older than 17.

    Warns
    -----
    UserWarning
        A session runs already, and a wanted setting cannot be changed in it.
    """
    for what, value in (("master", master), ("name", name)):
        require(value is None or isinstance(value, str), f"hg.session: {what}", value, "a text")
    asked = {"spark.master": master} if master else {}
    asked |= {"spark.app.name": name} if name else {}
    asked |= {key: str(value) for key, value in config.items()}
    if is_running():
        return _adapt_running_session(asked)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_AUTH_SOCKET_TIMEOUT", str(_SOCKET_TIMEOUT_S))
    _require_java()
    by_user = _settings_of_user(asked)
    builder = SparkSession.builder
    for key, value in {**_settings_of_headgate(by_user | asked), **asked}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    if "spark.log.level" not in by_user | asked:
        spark.sparkContext.setLogLevel("ERROR")
    return spark


def _settings_of_user(asked: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of spark-submit and of the cluster's files; start the JVM, which reads them.

    `asked`: settings for the start of the JVM, such as its memory and class path.
    """
    if not has_jvm():
        _launched_with.update(asked)
    with quiet_stderr() if not has_jvm() else nullcontext():
        start_jvm(asked)
    settings = dict(SparkConf().getAll())
    sparks_own = {"spark.app.name": _SHELL}
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # without spark-submit, this is a shell to Spark
        sparks_own["spark.ui.showConsoleProgress"] = "true"
    if "SPARK_MASTER" in os.environ:
        sparks_own["spark.master"] = "local[*]"
    return {
        key: value
        for key, value in settings.items()
        if value not in (sparks_own.get(key), _launched_with.get(key))
    }


def _settings_of_headgate(others: Mapping[str, str]) -> dict[str, str]:
    """Return headgate's own settings, without those in `others`."""
    master = others.get("spark.master", os.environ.get("SPARK_MASTER", "local[*]"))
    ours = {"spark.master": master, "spark.app.name": "headgate", **_DEFAULTS}
    alone = master.startswith("local")
    if alone or master.startswith(("spark://127.", "spark://localhost")):
        named = {"SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME"} & os.environ.keys()
        ours |= {} if named else _HERE
    ours |= {setting.key: setting.value for setting in SETTINGS}
    if alone:
        ours[_SOCKET_DIRECTORY] = socket_directory()
    elif not _umask_keeps_others_out():
        # executors lack this host's directory, and with this umask other users could reach a socket
        del ours[_UNIX_SOCKETS]
    if not alone:
        ours[PIPELINED] = "true"  # executors read it once, when they start; real time needs it
    if _shipped_as_modules():
        del ours[_DAEMON]
    return {key: value for key, value in ours.items() if key not in others}


def _shipped_as_modules() -> bool:
    """Return whether headgate is imported from an archive, as with ``--py-files``.

    Spark's workers import from such archives, but the daemon that starts the workers does not.
    """
    return not Path(__file__).exists()


def _umask_keeps_others_out() -> bool:
    # the umask can be read only by setting it
    mask = os.umask(0o077)
    os.umask(mask)
    return (mask & _WRITABLE_BY_OTHERS) == _WRITABLE_BY_OTHERS


def _adapt_running_session(asked: Mapping[str, str]) -> SparkSession:
    """Return the running session; change the settings of `asked` that can still be changed."""
    spark = SparkSession.builder.getOrCreate()
    fixed = {
        "spark.master": spark.sparkContext.master,
        "spark.app.name": spark.sparkContext.appName,
    }
    too_late = []
    for key, value in asked.items():
        if fixed.get(key, spark.conf.get(key, None)) == value:
            continue
        if key in fixed or not _set(spark, key, value):
            too_late.append(key)
    too_late += [key for key in _missing(spark) if key not in too_late]
    if too_late:
        _warned.add("advice")
        msg = (
            f"a Spark session runs already, in which hg.session() can no longer set "
            f"{', '.join(too_late)}; stop it first, or call hg.session() before it is made."
        )
        warnings.warn(msg, stacklevel=3)
    return spark


def _set(spark: SparkSession, key: str, value: str) -> bool:
    try:
        spark.conf.set(key, value)
    except PySparkException:
        return False
    return True


def _missing(spark: SparkSession) -> list[str]:
    """Return the settings that a session lacks and that cannot be changed while it runs."""
    values = {
        setting.key: spark.conf.get(setting.key, None)
        for setting in SETTINGS
        if not setting.running
    }
    lacking = [
        setting.key
        for setting in SETTINGS
        if not setting.running and values[setting.key] != setting.value
    ]
    return [key for key in lacking if key != _DAEMON or not _shipped_as_modules()]


def check(spark: SparkSession, location: str) -> None:
    """Refuse a session that cannot run a query; warn with the text of `advice`, once per process.

    Raises `ConfigError`: speculation is on, or the workers' Python cannot run headgate.
    """
    if spark.sparkContext.getConf().get("spark.speculation", "false") == "true":
        msg = "spark.speculation is on; two live attempts of a slot only waste work here. Switch it off."
        raise ConfigError(msg)
    check_interpreter(spark)
    said = advice(spark, location)
    if said is not None and "advice" not in _warned:
        _warned.add("advice")
        warnings.warn(said, stacklevel=users_level())
    wanted = partitions_wanted(spark)
    if wanted is not None and "partitions" not in _warned:
        _warned.add("partitions")
        warnings.warn(wanted, stacklevel=users_level())


def partitions_wanted(spark: SparkSession) -> str | None:
    """Return one line about a user's number of shuffle partitions; None for the default number."""
    chosen = str(spark.conf.get(_PARTITIONS))
    if chosen in (_SPARKS_PARTITIONS, _DEFAULTS[_PARTITIONS]):
        return None
    return (
        f"{_PARTITIONS}={chosen} counts for what Spark itself computes, not for slots; their number is "
        f".slots(start={chosen}), and query.scale({chosen}) while the query runs."
    )


def advice(spark: SparkSession, location: str) -> str | None:
    """Return one line naming the settings that `spark` lacks, or None.

    It sets the settings that a running session can change, if the user has not set them.

    `location`: location of a query's checkpoint.
    """
    for setting in SETTINGS:
        if not setting.running:
            continue
        if setting.local_only and "://" in location.removeprefix("file://"):
            continue
        # the default is None, since Spark demands a default of the setting's type
        if spark.conf.get(setting.key, None) is None:
            spark.conf.set(setting.key, setting.value)
    missing = _missing(spark)
    if not missing:
        return None
    return (
        "batches would be faster, and a busy machine would be waited for, with hg.session(), which also "
        f"sets {', '.join(missing)}."
    )


_JAVA_OLDEST = 17
_JAVA_WAIT_S = 30.0
_JAVA_REMEDY = "install one (Debian: apt-get install openjdk-17-jre-headless)"


def _require_java() -> None:
    """Raise HeadgateError unless the Java that Spark will start is new enough."""
    if has_jvm():
        return  # this process has a JVM already
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
    """Return the java that Spark's launcher takes: JAVA_HOME goes before PATH."""
    home = os.environ.get("JAVA_HOME")
    if home:
        programs = [Path(home) / "bin" / "java"]
    else:
        programs = [Path(p) / "java" for p in os.environ.get("PATH", "").split(os.pathsep) if p]
    return next((p for p in programs if p.is_file() and os.access(p, os.X_OK)), None)


def _java_version(java: Path) -> int | None:
    """Return the major version that ``java -version`` names; None if its output is not known."""
    try:
        run = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_WAIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', run.stderr + run.stdout)
    return int(match[1]) if match else None
