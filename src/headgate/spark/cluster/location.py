"""Finds the place of a query's checkpoint: one directory for Spark's own log and headgate's state."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import uuid
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headgate.core.errors import CheckpointError, ConfigError, instead_of
from headgate.core.frames import users_level
from headgate.core.input import checked_path
from headgate.core.location import LOCAL, not_local, uri
from headgate.core.stores import options_for, store_url
from headgate.spark.jvm.errors import JavaError, JvmError
from headgate.spark.jvm.files import HadoopPath, default_file_system

_WHAT = "checkpoint"
_DEFAULT = "spark.sql.streaming.checkpointLocation"
_FORCED = "spark.sql.streaming.forceDeleteTempCheckpointLocation"


@dataclass(frozen=True)
class Place:
    """Describes the place of a query's checkpoint."""

    path: Path
    """Absolute path of the directory. For a checkpoint on an object store, a directory on the driver's
    disk for Spark's own log and the journal, which headgate copies from there to the store."""
    temporary: bool = False
    """Whether headgate chose the directory, and removes it when the query has ended without failure."""
    forced: bool = False
    """Whether a temporary directory is removed after a failure, too."""
    url: str | None = None
    """Address of a checkpoint on an object store."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options of that store, see `headgate.core.stores`."""

    @property
    def uri(self) -> str:
        """The directory as a URI, for Spark."""
        return uri(self.path)

    def leave(self, *, failed: bool) -> None:
        """Remove a temporary directory; after a failure it stays, as in Spark, unless `forced`.

        For a checkpoint on a store, the journal stays readable here until the process ends.
        """
        if self.url is not None:
            for kind in ("offsets", "commits", "sources"):
                shutil.rmtree(self.path / kind, ignore_errors=True)
            return
        if self.temporary and (self.forced or not failed):
            shutil.rmtree(self.path, ignore_errors=True)


def place(
    spark: SparkSession,
    given: str | None,
    name: str | None,
    *,
    one_time: bool,
    options: Mapping[str, str] | None = None,
) -> Place:
    """Return the place of a query's checkpoint, chosen as in Spark.

    Raises `ConfigError`: no place is set; `CheckpointError`: the place is no path, or lies on another
    file system than the local one.

    Parameters
    ----------
    given : str or None    The option ``checkpointLocation``.
    name : str or None
        Name of the query, and of its directory below ``spark.sql.streaming.checkpointLocation``.
    one_time : bool
        Whether the sink is one that Spark runs without a checkpoint, in a temporary directory.
    options : mapping, optional    Options of the writer, including those of a store.
    """
    root = spark.conf.get(_DEFAULT, None) if given is None else None
    last = name or str(uuid.uuid4())
    url = store_url(given or (f"{root}/{last}" if root else "-"))
    of_store = options_for(url, options or {})
    if url is not None:
        beside = Path(tempfile.mkdtemp(prefix="headgate-driver-")).resolve()
        (beside / "headgate").mkdir(mode=0o700)
        atexit.register(shutil.rmtree, beside, ignore_errors=True)
        return Place(beside, temporary=True, url=url, options=of_store)
    if given is not None:
        return Place(resolved(spark, given))
    if root is not None:
        return Place(resolved(spark, root) / last)
    if not one_time:
        msg = (
            'a query needs a place for its state; add .option("checkpointLocation", ...)'
            f"{instead_of('checkpointLocation', options or {})}, or set {_DEFAULT}."
        )
        raise ConfigError(msg)
    made = Path(tempfile.mkdtemp(prefix="headgate-temporary-")).resolve()
    text = (
        f"the query's state lies in {made} and goes when the query ends; add "
        '.option("checkpointLocation", ...) to start again from it.'
    )
    warnings.warn(text, stacklevel=users_level())
    forced = str(spark.conf.get(_FORCED, "false")).lower() == "true"
    return Place(made, temporary=True, forced=forced)


def resolved(spark: SparkSession, location: str) -> Path:
    """Return the directory to which Spark resolves `location`.

    Spark resolves a path without a scheme by ``fs.defaultFS``, and a relative path by the directory
    in which its JVM was started. This accesses only the local file system. Raises `CheckpointError`:
    `location` is no path, or lies on another file system than the local one, where Spark's log would
    be without headgate's state.
    """
    try:
        path = HadoopPath(spark, location)
    except (PySparkException, JavaError) as error:
        cause = str(error).strip().splitlines()[0].removesuffix(".")
        msg = f'{_WHAT} "{location}" is no path ({cause}); write it as /path or file:/path.'
        raise CheckpointError(msg) from error
    scheme = path.uri.scheme
    if scheme is None:
        default = default_file_system(spark)
        if default.scheme != LOCAL:
            raise CheckpointError(_by_default(location, default.text))
    elif scheme != LOCAL:
        raise CheckpointError(not_local(f"{_WHAT} {location}", f"{scheme}:"))
    try:
        address = path.resolved()
    except (PySparkException, JavaError) as error:  # file://host/...
        msg = f"{_WHAT} {location} names no directory; write it as file:/path, with one slash or three."
        raise CheckpointError(msg) from error
    if address.scheme != LOCAL:  # such as a default file system with a site's own class
        raise CheckpointError(_by_default(location, address.text))
    return checked_path(address.path)


def _by_default(location: str, default: str) -> str:
    return (
        f"{_WHAT} {location} lies on {default} to Spark, whose default file system that is, and only "
        f"POSIX paths work in this version; give a directory that every host mounts, as file:/path."
    )


def check_seen(spark: SparkSession, file: Path) -> None:
    """Refuse a directory in which Spark does not see an existing file.

    Raises `CheckpointError`: the JVM reads names in another encoding, or looks into another file
    system.
    """
    path = HadoopPath(spark, uri(file))
    try:
        seen = path.exists()
    except (PySparkException, JvmError):  # a name that the JVM's locale cannot write
        seen = False
    if not seen:
        msg = (
            f"Spark's JVM does not see {file}, so its log would lie elsewhere than headgate's state; "
            "start it with LC_ALL=C.UTF-8, or name the checkpoint in plain ASCII."
        )
        raise CheckpointError(msg)
