"""Pickles objects with users' functions by value, and returns the files of their broadcasts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyspark import SparkContext, cloudpickle
from pyspark.core.broadcast import Broadcast, _broadcastRegistry


def pickled(value: Any) -> tuple[bytes, dict[int, str]]:
    """Return a pickled value, and the files of its broadcasts by their ids."""
    dumps: Callable[[Any], bytes] = cloudpickle.dumps
    context = SparkContext._active_spark_context
    if context is None:
        return dumps(value), {}
    context._pickled_broadcast_vars.clear()
    made = dumps(value)
    files = {
        variable._jbroadcast.id(): variable._path for variable in context._pickled_broadcast_vars
    }
    context._pickled_broadcast_vars.clear()
    return made, files


def take_broadcasts(files: Mapping[int, str]) -> None:
    """Register broadcasts by their files in this process; call this before unpickling their functions."""
    for number, path in files.items():
        _broadcastRegistry[number] = Broadcast(path=path)
