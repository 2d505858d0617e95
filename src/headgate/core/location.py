"""Resolves the text of a checkpoint's location to a directory, without a Spark session.

Driver and executors open headgate's files themselves, so a path must be on a POSIX file system. A path
has the same meaning as in Hadoop, since Spark's own log is beside those files: a name before the first
colon, without a slash before the colon, is a scheme; there are no escapes.
"""

from __future__ import annotations

import os
from pathlib import Path

from headgate.core.errors import CheckpointError
from headgate.core.installed import STORES, installed

LOCAL = "file"
"""The scheme of a POSIX file system."""


def local_path(location: str | os.PathLike[str], what: str = "checkpoint") -> Path:
    """Return the directory that `location` names: a path or a ``file:`` URI.

    `location` (str or path): the text as the user wrote it; a ``pathlib.Path`` has lost one of the
    slashes of ``s3a://``. `what`: name of the directory in messages. Raises `CheckpointError`:
    `location` is empty, or names another file system.
    """
    text = os.fspath(location)
    scheme, colon, rest = text.partition(":")
    if not colon or "/" in scheme:
        if not text:
            msg = f"the {what} has an empty path; give the directory that it is to lie in."
            raise CheckpointError(msg)
        return Path(text)
    if scheme != LOCAL:
        raise CheckpointError(not_local(f"{what} {text}", f"{scheme}:"))
    if not rest.startswith("/") or (rest.startswith("//") and not rest.startswith("///")):
        msg = f"{what} {text} names no directory; write it as file:/path, with one slash or three."
        raise CheckpointError(msg)
    return Path("/" + rest.lstrip("/"))


def uri(path: Path) -> str:
    """Return an absolute path as a URI, which Spark's default file system does not change."""
    return f"{LOCAL}:{path}"


def not_local(what: str, where: str) -> str:
    """Return the sentence that refuses a file system that is not POSIX."""
    brought = "".join(f", {scheme}://" for scheme in installed(STORES))
    return (
        f"{what} lies on {where}, and only POSIX paths work in this version, for a checkpoint also "
        f"s3://, gs://, abfss:// and hdfs://{brought}; give a directory that every host mounts, as "
        "file:/path."
    )
