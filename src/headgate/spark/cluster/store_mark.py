"""Checks that every host can use the store of a checkpoint."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headgate.checkpoint.place import files_at
from headgate.core.errors import CheckpointError


@dataclass(frozen=True)
class StoreMark:
    """Names a file that the driver has written to a store, for every worker to read."""

    url: str
    """A `headgate.core.stores.store_url`."""
    name: str
    """Name of the file."""

    def problem(self, who: str) -> str | None:
        """Read the mark and write a file beside it, as tasks do; return the failure, or None."""
        files = files_at(self.url)
        answer = f"{self.name}-{who.replace('/', '_')}"
        try:
            files.put_unique(answer, files.get(self.name))
        except (CheckpointError, FileExistsError) as error:
            return str(error)
        files.remove([answer])
        return None


@contextmanager
def marked_store(url: str) -> Iterator[tuple[StoreMark | None, list[str]]]:
    """Write a mark to a store and remove it at the end; yield the mark, or the problems there.

    `url`: a `headgate.core.stores.store_url`; the credentials come from the environment.
    """
    files, mark = files_at(url), StoreMark(url, f"doctor-{secrets.token_hex(8)}")
    try:
        files.check()
        files.put(mark.name, secrets.token_bytes(16))
    except CheckpointError as error:
        yield None, [str(error)]
        return
    try:
        yield mark, []
    finally:
        files.remove([mark.name])
