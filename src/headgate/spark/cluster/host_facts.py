"""Reports facts of an executor's Python worker and its host; `doctor` judges them.

Runs in workers, so it imports no module of the driver. A check that cannot be done returns the reason
instead of raising: an unusual host must not hide the problems of other hosts.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import mmap
import os
import resource
import secrets
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from headgate.core.errors import HeadgateError
from headgate.core.input import open_regular, regular_bytes
from headgate.spark.cluster.store_mark import StoreMark
from headgate.spark.worker.whereabouts import executor_and_host
from headgate.tables.arena import arena_root
from headgate.tables.room import allocate

PACKAGES = ("pyspark", "pyarrow", "numpy", "numba")
"""Packages that must have the same version on all hosts, as headgate itself must."""

_TRIED_BYTES = 1 << 20
"""Size of the trial allocation in the arena; the smallest tables are smaller."""


@dataclass(frozen=True)
class HostFacts:
    """Holds the facts that one Python worker finds out about its host."""

    executor: str
    host: str
    """`executor`, `host`: Spark's names, if the worker can find them out."""
    versions: dict[str, str | None]
    """python, headgate and `PACKAGES`; None for a package that is not installed."""
    arena: str
    """Directory for state; empty if no directory can be used."""
    arena_problem: str | None
    """Why state cannot be stored there, in one sentence; None if it can."""
    arena_bytes: int
    arena_free_bytes: int
    """`arena_bytes`, `arena_free_bytes`: size and free space of the arena's file system."""
    address_bytes: int | None
    """RLIMIT_AS of a worker, which ``spark.executor.pyspark.memory`` sets; None for no limit."""
    mapped_bytes: int
    """Size of the address space that the worker uses already."""
    disk: str
    """The first of Spark's local directories."""
    disk_free_bytes: int
    clock_s: float
    """Wall clock at the check, seconds since 1970."""
    checkpoint_problem: str | None
    """Why the host cannot use the checkpoint directory; None if it can, or without a directory."""
    store_problem: str | None = None
    """Why the host cannot use the checkpoint's store, and the remedy; None likewise."""


def collect_facts(mark: Path | StoreMark | None = None) -> HostFacts:
    """Return the facts that this process can find out about its host.

    `mark`: a file that the driver has written into the checkpoint directory, or on its store.
    """
    clock_s = time.time()
    executor, host = executor_and_host()
    who = f"{executor}@{host}"
    arena, problem = _tried_arena()
    size, free = _room(arena) if arena else (0, 0)
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    disk = _local_directory()
    return HostFacts(
        executor=executor,
        host=host,
        versions=_versions(),
        arena=arena,
        arena_problem=problem,
        arena_bytes=size,
        arena_free_bytes=free,
        address_bytes=None if limit == resource.RLIM_INFINITY else limit,
        mapped_bytes=_mapped_bytes(),
        disk=disk,
        disk_free_bytes=_room(disk)[1],
        clock_s=clock_s,
        checkpoint_problem=_tried_checkpoint(mark, who) if isinstance(mark, Path) else None,
        store_problem=mark.problem(who) if isinstance(mark, StoreMark) else None,
    )


def answer_name(mark: Path, who: str) -> Path:
    """Return the file by which a worker of executor ``who`` answers the driver's `mark`."""
    return mark.with_name(f"{mark.name}-{who.replace('/', '_')}")


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {
        "python": ".".join(map(str, sys.version_info[:3])),
        # imported late and by name, since the package headgate imports this module in turn
        "headgate": str(importlib.import_module("headgate").__version__),
    }
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def _tried_arena() -> tuple[str, str | None]:
    """Return the arena directory, and why state cannot be put there."""
    try:
        root = str(arena_root())
    except (HeadgateError, OSError) as error:
        return "", str(error)
    path = f"{root}/doctor-{secrets.token_hex(8)}"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            # as the arena does before it maps a file: a full tmpfs raises here, and would kill later
            allocate(descriptor, _TRIED_BYTES)
            with mmap.mmap(descriptor, _TRIED_BYTES) as memory:
                memory[-1] = 1
        finally:
            os.close(descriptor)
            os.unlink(path)
    except OSError as error:
        return root, f"a file of {_TRIED_BYTES} bytes cannot be allocated there ({error.strerror})"
    return root, None


def _tried_checkpoint(mark: Path, who: str) -> str | None:
    """Read the driver's mark and write an answer beside it; return the failure, or None."""
    try:
        seen = regular_bytes(mark)
    except OSError as error:
        return f"the driver's file there cannot be read ({error.strerror})"
    try:
        flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY
        with os.fdopen(open_regular(answer_name(mark, who), flags), "wb") as answer:
            answer.write(seen)
    except OSError as error:
        return f"nothing can be written there ({error.strerror})"
    return None


def _room(directory: str) -> tuple[int, int]:
    """Return size and free bytes of a directory's file system."""
    status = os.statvfs(directory)
    return status.f_frsize * status.f_blocks, status.f_frsize * status.f_bavail


def _mapped_bytes() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (OSError, ValueError):
        return 0
    return pages * resource.getpagesize()


def _local_directory() -> str:
    """Return the directory of Spark's shuffle files on this host."""
    for name in ("SPARK_EXECUTOR_DIRS", "SPARK_LOCAL_DIRS"):
        first = os.environ.get(name, "").partition(os.pathsep)[0].partition(",")[0]
        if first and Path(first).is_dir():
            return first
    return tempfile.gettempdir()
