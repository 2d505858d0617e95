"""Keeps operators, arenas, stores and checkpoints of a Python worker between its tasks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.operators.build import Spec, operator_of
from headgate.operators.operator import Operator
from headgate.tables.arena import (
    ArenaStore,
    RunDirectory,
    arena_root,
    join_run,
    spill_root,
    sweep,
)
from headgate.tables.tiers import MemoryBound, Tiers

_operators: dict[str, Operator] = {}
_runs: dict[str, RunDirectory] = {}
_stores: dict[tuple[str, str], ArenaStore] = {}
_checkpoints: dict[tuple[str, str], Checkpoint] = {}


def operator_named(name: str, spec: Spec) -> Operator:
    """Return the operator of `spec`; each process makes it once."""
    known = _operators.get(name)
    if known is None or known.spec != spec:
        known = _operators[name] = operator_of(spec)
    return known


def run_named(
    root: str | None, run_id: str, memory: Mapping[str, Any] | None = None
) -> RunDirectory:
    """Join a run on this host, once, and return the run's directory on this host.

    `root`: the driver's arena root if driver and workers share a host; None: this host's own root.
    `memory`: as `SlotFacts.memory`; None if memory is not bounded.
    """
    if run_id not in _runs:
        _leave_ended_runs()
        here = arena_root() if root is None else Path(root)
        spill = None
        if memory is not None:
            spill = spill_root() if root is None else Path(memory["spill_root"])
        # stays in `_runs` while the run lasts: its lock protects this host's files from sweeps
        _runs[run_id] = join_run(here, run_id, spill)
        if root is None:
            # a driver sweeps when it starts, but perhaps no driver ever starts on this host
            for directory in (here, spill):
                if directory is not None:
                    sweep(directory)
    return _runs[run_id]


def store_of(
    run: RunDirectory, name: str, operator: Operator, memory: Mapping[str, Any] | None
) -> ArenaStore:
    """Return the store of an operator's tables in this host's directory of a run.

    `memory`: as `SlotFacts.memory`; the same for all tasks of a run.
    """
    key = (run.run_id, name)
    if key not in _stores:
        tiers = None
        if memory is not None and run.spill is not None:
            bound = MemoryBound(memory["byte_count"], memory["key_groups"])
            tiers = Tiers(run.path / name, run.spill.path / name, bound)
        _stores[key] = ArenaStore(run.path / name, operator.layout.table, tiers)
    return _stores[key]


def _leave_ended_runs() -> None:
    """Close the arenas of runs whose driver has ended; the last process to leave removes the files."""
    for run_id in [r for r, run in _runs.items() if run.ended]:
        _leave(run_id)


def leave_runs() -> None:
    """Close the arenas of all runs; the last process of a host to leave a run removes its files."""
    for run_id in list(_runs):
        _leave(run_id)


def _leave(run_id: str) -> None:
    for key in [k for k in _stores if k[0] == run_id]:
        _stores.pop(key).close()
    if run_id in _runs:
        _runs.pop(run_id).close()


def checkpoint_at(path: str, run_id: str, options: Mapping[str, str] | None = None) -> Checkpoint:
    """Return this run's view of a checkpoint; each process makes it once.

    Drops the views of other runs: their caches may be of a checkpoint that was replaced. Those runs
    have ended, so this worker leaves them, too: a driver on another host cannot tell the worker.

    `path`: `Checkpoint.location`. `options`: options of a store; the task's function carries them,
    since Spark does not log it.
    """
    key = (path, run_id)
    if key not in _checkpoints:
        for old in [k for k in _checkpoints if k[0] == path]:
            del _checkpoints[old]
            _leave(old[1])
        _checkpoints[key] = Checkpoint(path, options, known=True)
    _checkpoints[key].settle()
    return _checkpoints[key]
