"""Runs many simulations over the cores of this machine."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def run_all(
    work: Callable[[Item], Result], items: Sequence[Item], jobs: int | None = None
) -> list[Result]:
    """Return ``work(item)`` of each item, in their order; progress goes to stderr.

    `work`: at the top level of a module, so that other processes find it. `items`: longest first keeps
    the cores busy to the end. `jobs`: processes at once; default: one per core.
    """
    start_s = time.monotonic()
    results: dict[int, Result] = {}

    def took(index: int, result: Result) -> None:
        results[index] = result
        elapsed_s = time.monotonic() - start_s
        sys.stderr.write(f"{len(results)} of {len(items)} runs, {elapsed_s:.0f} s\n")
        sys.stderr.flush()

    workers = min(jobs or os.cpu_count() or 1, len(items))
    if workers <= 1:
        for index, item in enumerate(items):
            took(index, work(item))
    else:
        # Spawned, not forked: a fork would copy locks of the libraries' threads.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            futures = {pool.submit(work, item): index for index, item in enumerate(items)}
            for future in as_completed(futures):
                took(futures[future], future.result())
    return [results[index] for index in range(len(items))]
