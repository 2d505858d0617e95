"""Runs servers on loopback for checkpoints of benchmarks and tests, by name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from headgate_lab.testing.go_servers import fake_gcs, versity
from headgate_lab.testing.hdfs import hdfs
from headgate_lab.testing.s3_server import serving
from headgate_lab.testing.servers import BUCKET, variables


@contextmanager
def _own_s3() -> Iterator[str]:
    with serving() as store, _environment(store.environment):
        yield "s3"


@contextmanager
def _versity() -> Iterator[str]:
    with versity() as options, _environment(variables("AWS", options)):
        yield "s3"


@contextmanager
def _fake_gcs() -> Iterator[str]:
    with fake_gcs() as options, _environment(variables("GOOGLE", options)):
        yield "gs"


_STORES = {"s3": _own_s3, "versity": _versity, "gs": _fake_gcs}
"""Object stores by name; each context yields the scheme of the store's addresses."""


@contextmanager
def located(location: str | None) -> Iterator[str | None]:
    """Yield the location for checkpoints; start a server on loopback if its name is given.

    Parameters
    ----------
    location : str or None
        ``s3`` for the small server of this package, ``versity`` for Versity's S3, ``gs`` for a fake of
        Google's store, ``hdfs`` for a cluster in one process. An address such as ``s3://bucket/key``,
        which uses the environment's credentials, and None are yielded unchanged.
    """
    if location == "hdfs":
        with hdfs() as address:
            yield f"{address}/checkpoints"
    elif location in _STORES:
        with _STORES[location]() as scheme:
            yield f"{scheme}://{BUCKET}/checkpoints"
    else:
        yield location


@contextmanager
def _environment(added: Mapping[str, str]) -> Iterator[None]:
    """Add environment variables of this process, and so of its children, in the context."""
    before = dict(os.environ)
    os.environ.update(added)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
