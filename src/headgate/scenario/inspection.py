"""Reports the content of a checkpoint, and a restart's work, without Spark or a query."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.manifest import KINDS, NO_STEP, REAL_TIME, SOURCES, Manifest, SectionEntry
from headgate.checkpoint.manifest_log import committed_by_spark
from headgate.checkpoint.verify import problems as problems_in
from headgate.core.errors import CheckpointError, HeadgateError, require_place
from headgate.core.input import is_directory, shown

_PLACES = ("intents", "manifests", *KINDS)
_NOTHING = {"does": "begin from nothing", "groups": 0, "sections": 0, "rows": 0, "bytes": 0}


def inspect(checkpoint: str | os.PathLike[str], verify: bool = False) -> dict[str, Any]:
    """Return the content of a checkpoint and the work of a restart; change nothing.

    Parameters
    ----------
    checkpoint : path
        Spark's ``checkpointLocation``. The query may be running: its files then come and go during
        the inspection, so believe in damage only if a second inspection shows it, too.
    verify : bool
        Read every file and compare its checksum, and walk the chain of every key group.

    Returns
    -------
    dict
        - checkpoint: location; job, query: the identity, which must be the same at a restart.
        - step, spark_batch, epoch, watermark_us, backlog_rows: from the newest manifest.
        - operators: per operator slots, groups, groups_with_state, entries, backlog_rows; during a
          migration also migration: strategy, slots_from, slots_to, going_back (why the migration is
          undone, or empty), groups_by_phase, and per subscale its number as subscale, groups, source,
          destination, phase, groups_answered.
        - restart: does (a phrase), and the groups, sections, rows and bytes to read.
        - files, bytes: per directory; problems: sentences; sound: whether there are none; checked:
          whether every file was read.

    Raises
    ------
    CheckpointError
        There is no checkpoint of headgate, or the checkpoint has no state.
    """
    require_place(checkpoint, "hg.inspect: checkpoint")
    store = Checkpoint(checkpoint)
    if not store.files.is_there():
        is_other = not store.files.shared and is_directory(store.path)
        state = "is not a checkpoint of headgate" if is_other else "does not exist"
        where = shown(store.location)
        msg = f"checkpoint {where} {state}; give the checkpointLocation of a headgate query."
        raise CheckpointError(msg)
    places = (*_PLACES, SOURCES) if store.files.shared else _PLACES
    counted = {place: store.files.sizes(place) for place in places}
    if not store.files.exists("identity.json") and not any(counted.values()):
        msg = (
            f"checkpoint {shown(store.location)} holds no state: its query ended before its first batch, "
            "or only its journal was copied; `headgate diagnose` says what the journal has."
        )
        raise CheckpointError(msg)
    problems: list[str] = []
    result: dict[str, Any] = {"checkpoint": store.location}
    latest = _latest(store, result, problems)
    if latest is not None:
        result |= _described(latest)
        result["restart"] = _restart(store, latest, problems)
    else:
        result["restart"] = _NOTHING
    result["files"] = {place: len(sizes) for place, sizes in counted.items()}
    result["bytes"] = {place: sum(sizes.values()) for place, sizes in counted.items()}
    if verify:
        problems += [text for text in problems_in(store) if text not in problems]
    return {**result, "problems": problems, "sound": not problems, "checked": verify}


def _latest(store: Checkpoint, result: dict[str, Any], problems: list[str]) -> Manifest | None:
    """Return the newest manifest, or None; add the identity to `result`, or an error to `problems`."""
    try:
        identity = store.identity()
        result |= {"job": identity["job"], "query": identity["query"]}
        return store.latest()
    except HeadgateError as error:
        problems.append(str(error))
        return None


def _described(latest: Manifest) -> dict[str, Any]:
    """Return the facts of the newest manifest."""
    facts: Mapping[str, Any] = latest.engine.get("operators", {})
    operators = {}
    for name, assignment in latest.assignments.items():
        own = facts.get(name, {})
        waiting = own.get("backlog", {}).values()
        steps = latest.heads[name].steps
        operators[name] = {
            "slots": assignment["slots"],
            "groups": len(steps),
            "groups_with_state": sum(step != NO_STEP for step in steps),
            "entries": sum(own.get("rows", ())),
            "backlog_rows": sum(segment[2] for segments in waiting for segment in segments),
        }
        if "migration" in own:
            operators[name]["migration"] = _migration(own["migration"]["protocol"])
    return {
        "step": latest.step,
        "spark_batch": latest.spark_batch,
        "epoch": latest.epoch,
        "watermark_us": latest.watermarks["evict_us"],
        "backlog_rows": sum(operator["backlog_rows"] for operator in operators.values()),
        "operators": operators,
    }


def _migration(protocol: Mapping[str, Any]) -> dict[str, Any]:
    """Return the progress of a migration, from its data in the manifest."""
    subscales = protocol["subscales"]
    groups_by_phase: Counter[str] = Counter()
    for subscale in subscales:
        groups_by_phase[subscale["phase"]] += len(subscale["groups"])
    return {
        "strategy": protocol["strategy"],
        "slots_from": protocol["current"]["slots"],
        "slots_to": protocol["target"]["slots"],
        "going_back": protocol["failed"],
        "groups_by_phase": dict(groups_by_phase),
        "subscales": [
            {
                "subscale": subscale["number"],
                "groups": subscale["groups"],
                "source": subscale["source"],
                "destination": subscale["destination"],
                "phase": subscale["phase"],
                "groups_answered": subscale["answered"],
            }
            for subscale in subscales
        ],
    }


def _restart(store: Checkpoint, latest: Manifest, problems: list[str]) -> dict[str, Any]:
    """Return the work of a restart: actions in words, and the number of sections to read."""
    groups = sections = rows = 0
    blobs: dict[tuple[int, int], int] = {}
    for name, heads in latest.heads.items():
        for group, step in enumerate(heads.steps):
            if step == NO_STEP:
                continue
            groups += 1
            try:
                for manifest, entry in _chain(store, name, group, step):
                    sections += 1
                    rows += entry.ref.row_count
                    blobs[manifest.step, entry.blob] = manifest.blobs[entry.blob].length
            except HeadgateError as error:
                problems.append(f"{name}, key group {group}: {error}")
    does = f"go on after step {latest.step}"
    try:
        if _may_lack_output(store, latest):
            does = f"deliver the output of step {latest.step} again, unless the sink has it, then {does}"
        if store.read_intent(latest.step + 1) is not None:
            does += f"; step {latest.step + 1} was begun and runs again"
    except CheckpointError as error:
        problems.append(str(error))
    read = {"groups": groups, "sections": sections, "rows": rows, "bytes": sum(blobs.values())}
    return {"does": does, **read}


def _chain(
    store: Checkpoint, operator: str, group: int, step: int
) -> Iterator[tuple[Manifest, SectionEntry]]:
    """Yield the sections that lead to a group's state, newest first."""
    while step != NO_STEP:
        manifest = store.read(step)
        entry = manifest.sections.get(operator, {}).get(group)
        if entry is None or entry.previous_step >= step:
            msg = f"step {step} lacks its section; restore the checkpoint from a copy."
            raise CheckpointError(msg)
        yield manifest, entry
        if entry.ref.full:
            return
        step = entry.previous_step


def _may_lack_output(store: Checkpoint, latest: Manifest) -> bool:
    """Return whether no record shows that the sink has the output of the newest step.

    The record is Spark's commit of the batch or, in real time, the step's intent.
    """
    if REAL_TIME in latest.engine:
        return not (store.read_intent(latest.step) or {}).get("delivered")
    if store.files.shared:
        return not committed_by_spark(store, latest)
    return not (store.path / "commits" / str(latest.spark_batch)).exists()
