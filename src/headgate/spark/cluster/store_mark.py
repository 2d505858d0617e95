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
    """A file that the driver has left on a store, for every worker to read."""

    url: str
    """A `headgate.core.stores.store_url`."""
    name: str
    """Name of the file."""

    def problem(self, who: str) -> str | None:
        """Read the mark and write beside it, as tasks do; return what of that did not work."""
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
    """Leave a mark on a store meanwhile; yield it, or what is wrong there.

    `url`: a `headgate.core.stores.store_url`; who asks is found in the environment.
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
