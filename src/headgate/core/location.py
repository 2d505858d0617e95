"""Resolves the text of a checkpoint's location to a directory, without a Spark session.

headgate keeps state in files that driver and executors open themselves, so a path must name a POSIX
file system. A path means what it means to Hadoop, since Spark's own log lies beside that state: a name
before the first colon, if no slash comes before the colon, is a scheme; nothing is unescaped.
"""

from __future__ import annotations

import os
from pathlib import Path

from headgate.core.errors import CheckpointError
from headgate.core.installed import STORES, installed

LOCAL = "file"
"""The scheme of a POSIX file system."""


def local_path(location: str | os.PathLike[str], what: str = "checkpoint") -> Path:
    """Return the directory that `location` names, be it a path or a ``file:`` URI.

    `location` (str or path): the text as the user wrote it: a ``pathlib.Path`` has lost one of the
    slashes of ``s3a://``. `what`: what lies there, for the message. Raises `CheckpointError`: it is
    empty, or names another file system.
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
    """Return an absolute path so that it names the same to Spark, whatever its default file system."""
    return f"{LOCAL}:{path}"


def not_local(what: str, where: str) -> str:
    """Return the sentence that refuses another file system than a POSIX one."""
    brought = "".join(f", {scheme}://" for scheme in installed(STORES))
    return (
        f"{what} lies on {where}, and only POSIX paths work in this version, for a checkpoint also "
        f"s3://, gs://, abfss:// and hdfs://{brought}; give a directory that every host mounts, as "
        "file:/path."
    )
