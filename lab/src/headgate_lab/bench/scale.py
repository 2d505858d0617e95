"""Measures the work of the driver of a query in real time per epoch, with simulated slots.

The pipe, the manifests and the checkpoint are the product's. A thread that answers cuts replaces Spark's
job. Two processes replace all slots: they answer over TCP, with reports as slots send them, in which some
key groups have changed in each epoch. So any number of slots fits on one machine, and only the driver is
measured: its time and bytes per epoch, the bytes of a change's routes, the time of a decision, the
recovery after the loss of a host, its requests to an object store, and the growth of each with the number
of slots.
"""

from __future__ import annotations

import dataclasses
import json
import math
import multiprocessing
import os
import pickle
import platform
import resource
import secrets
import statistics
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Self

import numpy as np

from headgate.checkpoint.changelog import SectionRef
from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.manifest import NO_STEP, Manifest, file_name
from headgate.checkpoint.snapshots import LEAST
from headgate.control.observation import Observation, OperatorView
from headgate.control.registry import policy
from headgate.core.assignment import Assignment
from headgate.operators.spec import AggregateSpec, Kind, Leaf, OutputMode
from headgate.spark.job.job import OperatorState
from headgate.spark.job.phases import Phases
from headgate.spark.job.reports import Payload, Report
from headgate.spark.move.placement import Placement
from headgate.spark.realtime import words
from headgate.spark.realtime.channels import Channel, Door, TcpDoor
from headgate.spark.realtime.pipe import Pipe
from headgate.spark.realtime.run_slots import PipeLost
from headgate.spark.step.begun import Begun
from headgate.spark.step.commit import next_manifest
from headgate.spark.worker.facts import SlotFacts
from headgate.spark.worker.slot import SlotTask
from headgate_lab.bench.common import machine, parameters, progress, require
from headgate_lab.testing.s3_server import BUCKET, FaultyS3, serving

_OPERATOR = "counts"
_SLOTS_PER_HOST = 32
"""Slots on a simulated host. Chosen."""
_GROUPS_MAX = 32_767
_WARM = 3
"""Epochs that are not measured. Chosen."""
_ROW_BYTES = 64
"""Bytes of a changed row in a changelog; about that of the count of `bench latency`."""


@dataclass(frozen=True)
class ScaleParameters:
    """Holds the parameters of `run`."""

    slots: str = "64,256,1024"
    """Numbers of slots, separated by commas."""

    groups: str = ""
    """Numbers of key groups, one for each number of slots; empty: `groups_per_slot` for each slot."""

    groups_per_slot: int = 32
    """Key groups per slot, at most 32,767 in total; >= 1."""

    changed: int = 8
    """Key groups of a slot that change in an epoch; >= 0."""

    count: int = 30
    """Epochs, after three that are not measured; the last one has a change of slots. >= 2."""

    store_count: int = 64
    """Epochs on a simulated S3 whose requests are counted; 64 have one sweep for garbage. >= 1."""

    def __post_init__(self) -> None:
        require(self.store_count > 0, f"store_count={self.store_count} of scale must be 1 or more.")
        require(self.count > 1, f"count={self.count} of scale is out of range; use 2 or more.")
        require(self.changed >= 0, f"changed={self.changed} of scale must not be negative.")

    def sizes(self) -> list[tuple[int, int]]:
        """Return pairs of slots and key groups."""
        slots = [int(number) for number in self.slots.split(",")]
        if self.groups:
            groups = [int(number) for number in self.groups.split(",")]
            require(len(groups) == len(slots), "scale needs as many groups as numbers of slots.")
            return list(zip(slots, groups, strict=True))
        return [(n, min(n * self.groups_per_slot, _GROUPS_MAX)) for n in slots]


def run(**given: Any) -> dict[str, Any]:
    """Measure the driver with each number of slots.

    Parameters
    ----------
    **given
        Fields of `ScaleParameters`.

    Returns
    -------
    dict
        ``sizes``: for each number of slots medians of an epoch (``*_ms``, ``*_bytes``), the times of a
        start, a change, a decision and a recovery (``lost_*``: one host is lost), and requests to a store
        (``store_*`` per epoch, ``rebuild_*`` of a slot that has none of its state); ``growth``: the power
        of the number of slots with which each figure grows, from the first number to the last;
        ``parameters``, ``machine``.
    """
    chosen = parameters(ScaleParameters, given)
    sizes = []
    for slots, groups in chosen.sizes():
        progress(f"{slots} slots, {groups} key groups")
        with tempfile.TemporaryDirectory(prefix="headgate-scale-") as directory:
            sizes.append(_measure(Path(directory), slots, groups, chosen))
    return {
        "sizes": sizes,
        "growth": _growth(sizes),
        "parameters": asdict(chosen),
        "machine": machine(),
    }


def lines(result: Mapping[str, Any]) -> list[str]:
    """Return the result as a table, a column for each number of slots."""
    sizes, growth = result["sizes"], result["growth"]
    table = []
    for name in sizes[0]:
        cells = "".join(f"{size[name]:>14,.6g}" for size in sizes)
        power = f"{growth[name]:>10.2f}" if name in growth else ""
        table.append(f"{name:<24}{cells}{power}")
    return [*table, "", "The last column is the power of the number of slots with which it grows."]


def _growth(sizes: Sequence[Mapping[str, float]]) -> dict[str, float]:
    first, last = sizes[0], sizes[-1]
    if first["slots"] == last["slots"]:
        return {}
    by = math.log(last["slots"] / first["slots"])
    return {
        name: round(math.log(last[name] / first[name]) / by, 2)
        for name in first
        if name != "slots" and first[name] > 0 and last[name] > 0
    }


def _measure(directory: Path, slots: int, groups: int, chosen: ScaleParameters) -> dict[str, Any]:
    """Return the figures of one number of slots."""
    checkpoint = Checkpoint(str(directory / "checkpoint"))
    with _Driver(checkpoint, slots, groups, chosen.changed) as driver:
        began = time.perf_counter()
        driver.start()
        start_s = time.perf_counter() - began
        epochs: list[dict[str, float]] = []
        for step in range(_WARM + chosen.count - 1):
            clock, cpu_ms = driver.epoch()
            if step >= _WARM:
                parts = {f"{phase}_ms": ms for phase, ms in clock.phases_ms.items()}
                total_ms = sum(clock.phases_ms.values())
                epochs.append({**parts, "epoch_ms": total_ms, "cpu_ms": cpu_ms})
        clock, _ = driver.epoch(_moved(driver.state.assignment))
        manifest = directory / "checkpoint/headgate/manifests" / file_name(chosen.count)
        routes = len(json.dumps({"slots": ["x" * 22] * slots, "slot_of": list(range(groups))}))
        told, reported = driver.byte_counts()
        memory = {"driver_mb": round(_memory_mb(), 1), "driver_threads": threading.active_count()}
        lost = _loss(driver, told)
        decision_ms = _decision_ms(driver.state.assignment)
    return {
        "slots": slots,
        "key_groups": groups,
        "start_s": round(start_s, 2),
        **{name: round(statistics.median(e[name] for e in epochs), 2) for name in epochs[0]},
        "told_bytes": told,
        "report_bytes": reported,
        "manifest_bytes": manifest.stat().st_size,
        "change_epoch_ms": round(sum(clock.phases_ms.values()), 2),
        "change_routes_bytes": routes,
        "decision_ms": round(decision_ms, 2),
        **memory,
        **lost,
        **_requests(directory, slots, groups, chosen),
    }


def _loss(driver: _Driver, told: int) -> dict[str, float]:
    """Lose a host between two epochs; return times and bytes up to the next committed epoch.

    `told`: bytes that an epoch tells the slots.
    """
    clock, cpu_s = Phases(), time.process_time()
    driver.hosts.lose_one()
    try:
        driver.epoch()
    except PipeLost:
        driver.pipe.stop(clean=False)
    else:
        raise AssertionError("the pipe has not noticed the loss of a host")
    clock.lap("stop")
    driver.start()
    clock.lap("start")
    driver.epoch()
    clock.lap("epoch")
    begin = len(pickle.dumps((words.BEGIN, pickle.dumps(driver.task), 1, {})))
    return {
        **{f"lost_{phase}_ms": round(ms, 2) for phase, ms in clock.phases_ms.items()},
        "lost_cpu_ms": round((time.process_time() - cpu_s) * 1e3, 2),
        "lost_told_bytes": begin * driver.state.assignment.slots + told,
    }


def _requests(
    directory: Path, slots: int, groups: int, chosen: ScaleParameters
) -> dict[str, float]:
    """Return the driver's requests per epoch to a simulated S3, and those that rebuild a slot's state."""
    with serving() as store:
        place = f"s3://{BUCKET}/scale"
        checkpoint = Checkpoint(place, store.options, directory / "log")
        with _Driver(checkpoint, slots, groups, chosen.changed) as driver:
            driver.start()
            for _ in range(LEAST + 2):  # then every epoch makes an older one garbage
                _commit_and_clean(driver)
            store.requests.clear()
            for _ in range(chosen.store_count):
                _commit_and_clean(driver)
            acts = Counter(_act(method, key) for method, key in store.requests)
            owned = driver.state.assignment.groups_of(0)
            read = _rebuild(store, Checkpoint(place, store.options, known=True), driver, owned)
    per_epoch = {
        f"store_{act}": round(acts[act] / chosen.store_count, 3)
        for act in ("put", "get", "head", "list", "delete")
    }
    return {**per_epoch, **read}


def _commit_and_clean(driver: _Driver) -> None:
    """Run an epoch; note its delivery and remove garbage, as `headgate.spark.step.steps` does."""
    driver.epoch()
    assert driver.latest is not None
    step = driver.latest.step
    driver.checkpoint.write_intent(step, {"step": step, "delivered": True})
    driver.checkpoint.collect_garbage(driver.latest)


def _act(method: str, key: str) -> str:
    """Return the kind of a request: a list names no key, and a deletion of many objects is a POST."""
    if method == "POST":
        return "delete"
    return "list" if method == "GET" and not key else method.lower()


def _rebuild(
    store: FaultyS3, reader: Checkpoint, driver: _Driver, owned: Sequence[int]
) -> dict[str, float]:
    """Read the manifests of the chains of a slot's key groups; return the number and bytes of reads."""
    store.requests.clear()
    began = time.perf_counter()
    for group in owned:
        step = driver.state.steps[group]
        while step != NO_STEP:  # as `Checkpoint.chain` goes back
            entry = reader.read(step).sections[_OPERATOR][group]
            step = NO_STEP if entry.ref.full else entry.previous_step
    took_ms = (time.perf_counter() - began) * 1e3
    keys = [key for method, key in store.requests if method == "GET"]
    return {
        "rebuild_get": len(keys),
        "rebuild_bytes": sum(len(store.objects.get(key, b"")) for key in keys),
        "rebuild_ms": round(took_ms, 2),
    }


class _Driver:
    """Runs epochs with the product's pipe, manifests and checkpoint, and simulated slots."""

    def __init__(self, checkpoint: Checkpoint, slots: int, groups: int, changed: int) -> None:
        self.checkpoint, self._job = checkpoint, checkpoint.open({})
        self.state = OperatorState.fresh(slots, groups)
        self.latest: Manifest | None = None
        self.hosts = _Answering(changed, max(2, -(-slots // _SLOTS_PER_HOST)))
        spec = AggregateSpec((Leaf(Kind.BYTES),), None, (), OutputMode.UPDATE)
        self.task = SlotTask(_OPERATOR, spec, None)
        tasks, routers = {_OPERATOR: self.task}, {_OPERATOR: 1}
        self.pipe = Pipe(_Cutter(), _OneFeeder(), tasks, routers, "scale", self.hosts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.pipe.stop(clean=True)
        self.hosts.close()

    def start(self) -> None:
        """Start the pipe and all slots."""
        self.pipe.start("[0]", {_OPERATOR: self.state.assignment})

    def epoch(self, switch: Assignment | None = None) -> tuple[Phases, float]:
        """Run an epoch; return its phases and the driver's processor time in it, in ms.

        `switch`: the assignment after the epoch, if it changes.
        """
        step = 0 if self.latest is None else self.latest.step + 1
        clock, cpu_s = Phases(), time.process_time()
        then = {} if switch is None else {_OPERATOR: switch}
        offsets = self.pipe.cut(step, still=False, switch=then)
        clock.lap("cut")
        self._facts = _facts(self.state, step, self.checkpoint.location)
        self._reports = self.pipe.serve(_OPERATOR, self._facts)
        clock.lap("serve")
        begun = Begun(step, step, 0, [offsets], 0.0, 0.0, 0, drain=True, latest=self.latest)
        made = next_manifest(begun, self._job, 0, {_OPERATOR: self.state}, self._reports)
        clock.lap("build")
        self.latest = self.checkpoint.commit(made)
        clock.lap("commit")
        cpu_ms = (time.process_time() - cpu_s) * 1e3
        if switch is not None:
            self.state.assign(switch)
            self.pipe.switched({_OPERATOR: switch.slots})
        return clock, cpu_ms

    def byte_counts(self) -> tuple[int, int]:
        """Return the bytes that the last epoch told all slots, and those of their reports."""
        shared, own = self._facts.of_slots(len(self._reports))
        told = [len(pickle.dumps((pickle.dumps(shared), part))) for part in own]
        return sum(told), sum(len(pickle.dumps(report)) for report in self._reports)


def _memory_mb() -> float:
    """Return the peak memory of this process, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _moved(assignment: Assignment) -> Assignment:
    """Return the next assignment, in which an eighth of the key groups has another slot."""
    groups = range(0, assignment.key_groups, 8)
    return assignment.remap({g: (assignment.slot_of[g] + 1) % assignment.slots for g in groups})


def _facts(state: OperatorState, step: int, checkpoint: str) -> SlotFacts:
    """Return the facts that `StatefulWork` sends to the slots for an epoch."""
    return SlotFacts(
        step=step, attempt=1, arena_root=None, run_id="0" * 32, checkpoint=checkpoint,
        watermark_us=0, slot_of=state.assignment.slot_of, held=[], tokens=state.tokens,
        steps=state.steps, emitted_us=state.emitted_us, due_us=state.due_us,
        snapshots=state.due_for_snapshot(step, None), backlog={}, waiting_crc32={}, quotas=None,
        next_slots=0, keep_late=False, delta_ms=100.0, bound_ms=100.0, timestamp_ms=step,
        time_limit_s=0.0, arrived_ms=0.0, faults=[],
    )  # fmt: skip


def _decision_ms(assignment: Assignment) -> float:
    """Return the median time of ten decisions of `unified`, in ms."""
    slots, groups = assignment.slots, assignment.key_groups
    rates = np.random.default_rng(0).gamma(2.0, 5.0, groups)
    view = OperatorView(
        assignment=assignment,
        slot_ids=tuple(range(slots)),
        latency_s=np.full(slots, 0.08),
        group_latency_s=np.full(groups, 0.08),
        group_rate=rates,
        service_rate=np.full(slots, float(rates.sum()) / slots * 1.3),
        utilisation=np.full(slots, 0.8),
        backlog=np.zeros(groups),
        bound_s=0.1,
        window_s=5.0,
        alert_s=0.08,
        slots_max=groups,
    )
    decides = policy("unified")
    took = []
    for cycle in range(10):
        began = time.perf_counter()
        decides.decide(Observation(float(cycle), {_OPERATOR: view}))
        took.append((time.perf_counter() - began) * 1e3)
    return statistics.median(took)


# --- in the place of Spark's job -----------------------------------------------------------------


class _OneFeeder:
    """Merges the offsets of a single feeder."""

    readers, copies = 1, 0

    def merged(self, parts: Any) -> str:
        return f"[{next(iter(parts))}]"


class _Cutter:
    """Answers each cut at once, in place of a feeder."""

    def run(self, meeting: words.Meeting, group: str) -> None:
        del group
        with suppress(OSError, EOFError), meeting.connect(meeting.driver) as driver:
            driver.send((words.FEEDER, 0, (platform.node(), os.getpid())))
            while True:
                word, *said = driver.recv()
                if word == words.END:
                    return
                if word == words.CUT:
                    driver.send((words.CUT, said[0], str(said[0]), time.time() * 1e3))

    def cancel(self, group: str) -> None:
        """Do nothing: the thread ends with its driver."""

    def failure(self, group: str) -> None:
        """Return None: a thread has no failed task."""


# --- in the place of slots -----------------------------------------------------------------------


class _Answering:
    """Implements `SlotHosts` with simulated slots; each of two processes answers for half of them."""

    processes: Mapping[str, int] = {}

    def __init__(self, changed: int, hosts: int) -> None:
        self._hosts = [f"host{n}" for n in range(hosts)]
        self._lost: Callable[[str], None] = lambda _: None
        self._placement = Placement(None)  # type: ignore[arg-type]  # only to look up hosts
        self._placement.follow(lambda: self._hosts)
        context = multiprocessing.get_context("spawn")
        self._programs: list[tuple[Any, Connection]] = []
        for _ in range(2):
            ours, theirs = context.Pipe()
            program = context.Process(target=_answer, args=(theirs, changed), daemon=True)
            program.start()
            theirs.close()
            self._programs.append((program, ours))

    def begin(self, lost: Callable[[str], None]) -> tuple[words.Meeting, Door]:
        self._lost = lost
        key = secrets.token_bytes(32)
        door = TcpDoor("127.0.0.1", key)
        return words.Meeting(door.address, key), door

    def places(self, operator: str, slots: int) -> list[str]:
        del operator
        return self._placement.hosts_of(slots)

    def lose_one(self) -> None:
        """Report the loss of a host, as its agent's connection does when it breaks."""
        self._lost(f"the agent of host {self._hosts.pop()} has ended.")

    def start(self, meeting: words.Meeting, operator: str, slot: int, host: str) -> _Slot:
        del host
        self._programs[slot % len(self._programs)][1].send((meeting, operator, slot))
        return _Slot()

    def look_for_stopped(self, feeders: Any) -> None:
        """Do nothing: no process is suspended."""

    def end(self, meeting: words.Meeting) -> None:
        """Do nothing: a run has no files."""

    def close(self) -> None:
        for program, ours in self._programs:
            ours.close()
            program.join(10.0)
            program.kill()


class _Slot:
    """Stands for a slot within a process, which ends with its channel."""

    def poll(self) -> None:
        return None

    def wait(self, timeout: float | None = None) -> int:
        del timeout
        return 0

    def kill(self) -> None:
        """Do nothing: the slot ends with its driver."""


def _answer(starter: Connection, changed: int) -> None:
    """Open slots as the starter says, and answer for all of them."""
    slots: list[Channel] = []
    with suppress(OSError, EOFError):
        while True:
            ready = wait([starter, *slots])  # type: ignore[list-item]
            if starter in ready:
                meeting, operator, number = starter.recv()
                slots.append(meeting.connect(meeting.driver))
                slots[-1].send((words.SLOT, (operator, number), os.getpid()))
            slots = [slot for slot in slots if slot not in ready or _has_answered(slot, changed)]


def _has_answered(slot: Channel, changed: int) -> bool:
    """Answer a message to a slot; return whether the slot goes on."""
    try:
        word, *said = slot.recv()
        if word == words.BEGIN:
            slot.send((words.READY, "tcp://127.0.0.1:12345"))
        elif word == words.SERVE:
            slot.send((words.REPORT, _report(changed, *said), {}))
    except (OSError, EOFError):
        return False
    return bool(word != words.END)


def _report(changed: int, shared: bytes, own: dict[str, Any], slot: int) -> Report:
    """Return the report of an epoch in which `changed` key groups of the slot have a changed row each."""
    facts = dataclasses.replace(pickle.loads(shared), **own)
    token = uuid.uuid4().hex
    owned = facts.groups_of(slot)
    groups = owned[:: max(len(owned) // changed, 1)][:changed] if changed else []
    data = os.urandom(_ROW_BYTES * len(groups))
    sections = {
        group: SectionRef(n, 1, 0, 0, 0, group in facts.snapshots, facts.tokens[group], token)
        for n, group in enumerate(groups)
    }
    nothing: dict[str, Any] = dict.fromkeys(field.name for field in dataclasses.fields(Report))
    return Report(**nothing | {
        "step": facts.step, "attempt": 1, "operator": _OPERATOR, "slot": slot, "token": token,
        "consumed": (), "groups": {group: (0, 0, 1) for group in groups}, "sections": sections,
        "changelog": Payload(data, None, len(data), 0), "output_rows": 0, "late_rows": 0,
        "segments": {}, "taken": {}, "arrived": len(groups), "served": len(groups),
        "late_records": 0, "waiting_records": 0, "served_rows": len(groups),
        "touched_rows": len(groups), "served_by_group": dict.fromkeys(groups, 1),
        "histogram": ((1.0, len(groups)),), "latency_sum_ms": 1.0, "latency_max_ms": 1.0,
        "watermark_us": facts.watermark_us, "holds_us": 0, "useful_ms": 1.0, "phases_ms": {},
        "cpu_ms": 1.0, "waited_ms": 0.0, "merged_rows": 0, "apart_holds_us": {},
        "touched_by_group": dict.fromkeys(groups, 1), "apart_records": {}, "inputs": (),
        "newest_ms": {}, "results": {},
    })  # fmt: skip
