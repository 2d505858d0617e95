"""Converts a checkpoint's place, on a disk or on a store, to the form that a caller needs."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.shipping import JournalCopy
from headgate.core.errors import CheckpointError
from headgate.core.location import uri
from headgate.core.stores import store_url
from headgate.journal.reader import locate


def written(place: str | os.PathLike[str]) -> str:
    """Return a place as a user writes it: a `Path` has lost a slash of a store's address."""
    return store_url(place) or os.fspath(place)


def absolute(place: Path) -> Path:
    """Return a place that does not depend on the working directory."""
    return place if store_url(place) is not None else place.absolute()


def to_spark(place: Path) -> str:
    """Return a place as a URL that does not depend on Spark's default file system."""
    return store_url(place) or uri(place.absolute())


def copy_directory() -> Path:
    """Return a new directory for the copy of a journal; the process deletes it at its end."""
    made = Path(tempfile.mkdtemp(prefix="headgate-journal-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def journal_at(checkpoint: str | os.PathLike[str]) -> Path:
    """Return the journal of a checkpoint; on a store a copy, which the process deletes at its end.

    Raises `CheckpointError`: the checkpoint has no journal, or the store cannot be read.
    """
    if store_url(checkpoint) is None:
        return locate(checkpoint)
    made = copy_directory()
    copy = made / "journal.jsonl"
    files = Checkpoint(checkpoint).files
    if not JournalCopy(files, copy).refresh():
        state = "has no journal" if files.is_there() else "does not exist"
        where = written(checkpoint)
        msg = f"checkpoint {where} {state}; give the checkpointLocation of a headgate query."
        raise CheckpointError(msg)
    return locate(made)
