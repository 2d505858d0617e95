"""Injects many faults into running jobs, which must give Spark's batch answer and never hang.

Independent of `headgate bench kill`: other queries, other input, other faults. Each job runs in its own
process. A supervisor injects faults into the job's processes, starts the job again from its checkpoint
when it has died, and adds files to its input all the time. After all planned faults, the job is told to
finish. Then its rows are compared. Files left in shared memory, and processes that still run, are
failures.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from headgate.core.errors import EngineError, HeadgateError
from headgate.journal.reader import read as read_journal
from headgate.journal.schema import AssignmentChange, Batch, Retry
from headgate_lab.bench import storm_faults as faults
from headgate_lab.bench import storm_jobs as jobs
from headgate_lab.bench.common import (
    child,
    machine,
    parameters,
    progress,
    require,
    spark_env,
    spread,
)
from headgate_lab.bench.storm_faults import Fault

_GONE_S = 60.0
"""Time in which the processes of an ended job must end, in seconds. Chosen, not tuned."""

_TIGHT_S = 0.0005
"""Interval between looks for a step's files, in seconds, for a kill between two of them."""

_CALM_S = 5.0
"""A job without a commit for this many seconds has used up its input, or is very slow."""

_AHEAD = 10
"""The waiting files suffice for at most this many steps. Chosen, not tuned."""

LAST = "crash-in-last"
"""The only fault that is not random: every job has it at the end."""

_GIVE_UP = 6
"""The run fails after this many consecutive lives that ended by themselves without a step."""

_JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
"""Options for JVMs that live for seconds, for which optimised compilation does not pay."""


@dataclass(frozen=True)
class StormParameters:
    """Holds the parameters of `run`."""

    count: int = 30
    """Faults per job; >= 1. A run with a fault that was not carried out has failed."""

    seed: int = 0
    """Seed of faults, moments, processes, changes of slots and the input; >= 0."""

    only: str = ",".join(jobs.JOBS)
    """Jobs that run, one after another, separated by commas."""

    kinds: str = ",".join(faults.KINDS)
    """Kinds of faults, separated by commas."""

    rows: int = 200
    """Records per file; >= 10."""

    file_s: float = 0.5
    """Time between two files of an input, in seconds, as long as the job keeps up; > 0."""

    files: int = 4
    """Most files per batch; >= 1."""

    moment_s_max: float = 3.0
    """Longest time from the job's progress to a fault, in seconds; >= 0."""

    start_s_max: float = 15.0
    """A kill at the start comes 0.5 s to this long after the process began, or with its first step."""

    pause_s: float = 20.0
    """Time for which a process is suspended, in seconds; > 0."""

    scale_s: float = 3.0
    """Longest time between two changes of slots, in seconds; >= 0.5."""

    slots_max: int = 5
    """Most slots; >= 1."""

    patience_s: float = 300.0
    """A job without progress for this many seconds counts as hanging; > 0."""

    watch_jvm: bool = False
    """Whether the job's process itself exits when its JVM dies, without waiting for headgate to do so."""

    keep: str = ""
    """Directory in which all files remain; default: a temporary one, which remains after a failure."""

    def __post_init__(self) -> None:
        least = {"count": 1, "seed": 0, "rows": 10, "files": 1, "slots_max": 1, "scale_s": 0.5}
        for name, bound in least.items():
            value = getattr(self, name)
            require(
                value >= bound, f"{name}={value} of storm is out of range; use {bound} or more."
            )
        for name, known in (("only", tuple(jobs.JOBS)), ("kinds", faults.KINDS)):
            unknown = set(getattr(self, name).split(",")) - set(known)
            require(not unknown, f"{name}={sorted(unknown)} is not known; use {', '.join(known)}.")


def run(**given: Any) -> dict[str, Any]:
    """Inject faults into each job, and compare its output.

    Parameters
    ----------
    **given
        Fields of `StormParameters`.

    Returns
    -------
    dict
        ``jobs``: by name, ``faults`` (by kind), ``rows_compared``, ``missing``, ``extra``, ``lives``,
        ``ended_alone`` (last lines of lives that ended by themselves), ``recovery_s`` (from a fault to
        the commit of a step that began after it; quartiles by kind), ``steps``, ``changes``,
        ``retries``, ``late``, ``left`` (run directories in shared memory), ``orphans``, ``failed``,
        ``duration_s``. Also ``verified``, ``failed``, ``kept`` (directory of all files, if they
        remain), ``parameters``, ``machine``.
    """
    chosen = parameters(StormParameters, given)
    folder = Path(chosen.keep or tempfile.mkdtemp(prefix="headgate-storm-"))
    folder.mkdir(parents=True, exist_ok=True)
    found = {name: _Storm(chosen, name, folder / name).result() for name in chosen.only.split(",")}
    failed = [f"{name}: {what}" for name, one in found.items() for what in one["failed"]]
    if not failed and not chosen.keep:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "jobs": found,
        "verified": all(one["verified"] for one in found.values()),
        "failed": failed,
        "kept": str(folder) if folder.exists() else None,
        "parameters": asdict(chosen),
        "machine": machine(),
    }


class _Input:
    """Adds files to a job's inputs, on a schedule, until it is told to end.

    `step` returns the job's newest step. The waiting files suffice for few steps only, since a slow
    machine would otherwise need hours at the end.
    """

    def __init__(
        self,
        chosen: StormParameters,
        work: Path,
        sides: tuple[str, ...],
        step: Callable[[], int],
    ) -> None:
        self._step = step
        self._chosen = chosen
        self._work = work
        self._sides = sides
        self._ended = threading.Event()
        self.files = 0
        for side in sides:
            (work / side).mkdir(parents=True)
        self._thread = threading.Thread(target=self._go, name="storm-input", daemon=True)
        self._thread.start()

    def _go(self) -> None:
        while not self._ended.wait(self._chosen.file_s):
            if self.files > self._chosen.files * (self._step() + _AHEAD):
                continue
            for side in self._sides:
                table = jobs.rows(self._chosen.seed, side, self.files, self._chosen.rows)
                self._drop(side, self.files, table)
            self.files += 1

    def end(self) -> None:
        """Stop adding files."""
        self._ended.set()
        self._thread.join()

    def flush(self) -> None:
        """Add a record that closes all windows before it."""
        for side in self._sides:
            self._drop(side, self.files, jobs.flush())

    def _drop(self, side: str, number: int, table: Any) -> None:
        hidden = self._work / f".{side}-{number}"
        pq.write_table(table, hidden)
        # Spark reads files by modification time
        os.utime(hidden, (jobs.BEGIN_S + number,) * 2)
        hidden.rename(self._work / side / f"{number:06d}.parquet")


class _Storm:
    """Runs one job, life after life, and injects its faults."""

    def __init__(self, chosen: StormParameters, name: str, work: Path) -> None:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        self._chosen = chosen
        self._name = name
        self._work = work
        self._job = jobs.JOBS[name]
        self._mark = secrets.token_hex(8)
        self._arena = Path(_shared_memory()) / f"headgate-storm-{self._mark}"
        self._arena.mkdir(mode=0o700)
        self._process: subprocess.Popen[bytes] | None = None
        self._life = 0
        self._draw = random.Random(f"{chosen.seed} {name}")
        self._fired: Counter[str] = Counter()
        self._recovery_s: dict[str, list[float]] = {}
        self._ended_alone: list[str] = []
        self._barren = 0
        self._failed: list[str] = []

    def result(self) -> dict[str, Any]:
        chosen, began = self._chosen, time.monotonic()
        kinds = tuple(chosen.kinds.split(","))
        plan = faults.planned(
            chosen.count,
            f"{chosen.seed} {self._name}",
            kinds,
            chosen.moment_s_max,
            chosen.start_s_max,
        )
        dropped = _Input(chosen, self._work, self._job.inputs, self._step)
        found: dict[str, Any] = {"verified": False}
        try:
            for number, fault in enumerate(plan, 1):
                self._strike(number, fault)
            dropped.end()
            self._strike_last(dropped)
            self._finish()
            orphans = self._orphans()
            left = sorted(os.listdir(self._arena))
            found |= self._judged() | {"orphans": orphans, "left": left}
            self._failed += [f"{one} did not end" for one in orphans]
            self._failed += [f"run directory {one} is left in shared memory" for one in left]
        except HeadgateError as error:
            self._failed.append(str(error))
        finally:
            dropped.end()
            self._end_all()
            shutil.rmtree(self._arena, ignore_errors=True)
        if found["verified"] is False and not self._failed:
            self._failed.append("the rows are not those of the batch answer")
        return found | {
            "faults": dict(sorted(self._fired.items())),
            "files": dropped.files,
            "lives": self._life,
            "ended_alone": self._ended_alone,
            "recovery_s": {k: spread(v) for k, v in sorted(self._recovery_s.items())},
            "failed": self._failed,
            "duration_s": round(time.monotonic() - began, 1),
        }

    # -- faults -----------------------------------------------------------------------------------

    def _strike(self, number: int, fault: Fault) -> None:
        """Inject a fault, and wait until the job has made progress again."""
        if fault.kind == faults.START:
            whom = self._kill_at_start(fault)
        else:
            self._running()
            time.sleep(fault.after_s)
            self._running()  # the job may have ended by itself
            whom = self._hurt(fault)
        struck = time.monotonic()
        self._fired[fault.kind] += 1
        if fault.ends_life:
            self._await_end(fault.kind)
        step = self._step()
        progress(
            f"{self._name} {number} of {self._chosen.count}: {fault.kind}, {whom}, step {step}"
        )
        self._running()
        self._recovery_s.setdefault(fault.kind, []).append(round(time.monotonic() - struck, 2))

    def _strike_last(self, dropped: _Input) -> None:
        """Make the driver exit in the commit of the last batch with rows.

        No further batch with rows follows, and the output of these rows must not be lost.
        """
        (self._work / jobs.CALM).touch()  # a change of slots is a step, too
        self._await_calm()
        self._say(f"crash after-manifest:{self._step() + 1}:group")
        dropped.flush()
        self._await_end(LAST)
        self._fired[LAST] += 1
        progress(f"{self._name}: {LAST}, step {self._step()}")

    def _await_calm(self) -> None:
        """Wait until the running job has had no work for a while."""
        step, since = self._step(), time.monotonic()
        while time.monotonic() < since + _CALM_S:
            if self._ended():
                self._bury()
            if self._process is None:
                self._start()
            if self._step() > step or not (self._work / jobs.STARTED).exists():
                step, since = self._step(), time.monotonic()
            time.sleep(0.05)

    def _hurt(self, fault: Fault) -> str:
        if fault.kind in faults.COMMITS:
            self._kill_in_commit(fault)
            return fault.whom
        if fault.kind in faults.CRASHES:
            point = fault.kind.removeprefix("crash-")
            whom = "group" if fault.whom == faults.GROUP else "driver"
            self._say(f"crash {point}:{self._step() + 3}:{whom}")
            return whom
        if fault.kind == "kill-group":
            self._kill(faults.GROUP)
            return faults.GROUP
        hurt: list[faults.Process] = []

        def struck() -> bool:
            found = faults.of_kind(self._processes(), fault.whom, self._pid)
            if self._ended():
                self._running()
            if not found:
                return False
            victim = found[int(fault.draw * len(found))]
            number = signal.SIGSTOP if fault.kind in faults.PAUSES else signal.SIGKILL
            if victim.send(number):
                hurt.append(victim)
            return bool(hurt)

        if not faults.wait_until(struck, self._chosen.patience_s):
            msg = f"{fault.kind} never fired: there was no {fault.whom}."
            raise EngineError(msg)
        if fault.kind in faults.PAUSES:
            time.sleep(self._chosen.pause_s)
            hurt[0].send(signal.SIGCONT)
        return f"{fault.whom} {hurt[0].pid}"

    def _kill_in_commit(self, fault: Fault) -> None:
        folder, suffix = {
            "commit-intent": ("checkpoint/headgate/intents", ""),
            "commit-manifest": ("checkpoint/headgate/manifests", ""),
            "commit-sink": ("output/_spark_metadata", ""),
            "commit-spark": ("checkpoint/commits", ""),
        }[fault.kind]
        place = self._work / folder
        before = _newest(place)
        new = faults.wait_until(
            lambda: _newest(place) > before or self._ended(), self._chosen.patience_s, _TIGHT_S
        )
        if not new:
            self._hangs(f"{fault.kind} never fired: no new file in {folder}{suffix}")
        self._kill(fault.whom)

    def _kill_at_start(self, fault: Fault) -> str:
        """Start a life, and kill it before or with its first batch."""
        if self._process is not None:
            self._stop()
        before = self._step()
        self._start()
        deadline = time.monotonic() + fault.after_s
        while time.monotonic() < deadline and self._step() == before and not self._ended():
            time.sleep(0.01)
        early = "" if self._step() == before else " with its first step"
        self._kill(fault.whom)
        return f"{fault.whom} {fault.after_s:.1f} s{early}"

    # -- lives ------------------------------------------------------------------------------------

    @property
    def _pid(self) -> int:
        return -1 if self._process is None else self._process.pid

    def _processes(self) -> list[faults.Process]:
        return faults.marked(self._mark)

    def _ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def _request(self) -> str:
        chosen = self._chosen
        return json.dumps(
            {
                "work": str(self._work),
                "job": self._name,
                "life": self._life,
                "seed": chosen.seed,
                "files": chosen.files,
                "scale_s": chosen.scale_s,
                "slots_max": chosen.slots_max,
                "watch_jvm": chosen.watch_jvm,
            }
        )

    def _environment(self) -> dict[str, str]:
        return spark_env() | {
            faults.MARK: self._mark,
            "HEADGATE_ARENA_DIR": str(self._arena),
            "JAVA_TOOL_OPTIONS": _JVM_OPTIONS,
        }

    def _command(self, what: str) -> list[str]:
        return [sys.executable, "-m", jobs.__name__, what, self._request()]

    def _start(self) -> None:
        self._life += 1
        (self._work / jobs.STARTED).unlink(missing_ok=True)
        with open(self._said, "wb") as said:
            self._process = subprocess.Popen(
                self._command("live"),
                env=self._environment(),
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    @property
    def _said(self) -> Path:
        return self._work / f"said-{self._life}.txt"

    def _running(self) -> None:
        """Wait until the job has committed a step that began after this call; start the job if needed."""
        if self._process is None:
            self._start()
        wanted = self._step() + 2
        deadline = time.monotonic() + self._chosen.patience_s
        while self._step() < wanted:
            if self._ended():
                self._bury()
                deadline = time.monotonic() + self._chosen.patience_s
                self._start()
            if time.monotonic() > deadline:
                self._hangs(f"no step after {self._step()} for {self._chosen.patience_s:g} s")
            time.sleep(0.02)
        self._barren = 0

    def _bury(self) -> None:
        """Record a life that ended by itself."""
        assert self._process is not None
        self._barren += 1
        last = self._last_words()
        self._ended_alone.append(f"life {self._life}, {self._process.returncode}: {last}")
        self._process = None
        if self._barren >= _GIVE_UP:
            msg = f"{self._barren} lives in a row ended of themselves, the last with: {last}"
            raise EngineError(msg)

    def _last_words(self) -> str:
        lines = self._said.read_text(errors="replace").splitlines()
        telling = [line for line in lines if "Error" in line or "Caused by" in line]
        return " | ".join((telling or lines)[-3:])[:600]

    def _await_end(self, why: str) -> None:
        """Wait until the life has ended, as it must."""
        assert self._process is not None
        try:
            self._process.wait(self._chosen.patience_s)
        except subprocess.TimeoutExpired:
            self._hangs(f"the driver still ran {self._chosen.patience_s:g} s after {why}")
        self._process = None

    def _stop(self) -> None:
        """Tell the life to stop its query and end."""
        self._running()
        self._say("stop")
        process = self._process
        self._await_end("it was told to stop")
        if process is not None and process.returncode:
            self._ended_alone.append(
                f"life {self._life}, {process.returncode}: {self._last_words()}"
            )

    def _finish(self) -> None:
        """Let the job serve all its input, in as many lives as needed."""
        (self._work / jobs.FINISH).touch()
        done = self._work / jobs.FINISHED
        while not done.exists():
            if self._process is None:
                self._start()
            step, since = self._step(), time.monotonic()
            while not self._ended():
                if self._step() > step:
                    step, since = self._step(), time.monotonic()
                if time.monotonic() > since + self._chosen.patience_s:
                    self._hangs(f"no end, and no step after {step}")
                time.sleep(0.05)
            if not done.exists():
                self._bury()
        self._process = None

    def _say(self, text: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{text}\n".encode())
            self._process.stdin.flush()

    def _kill(self, whom: str) -> None:
        with contextlib.suppress(ProcessLookupError):
            if whom == faults.GROUP:
                os.killpg(self._pid, signal.SIGKILL)
            else:
                os.kill(self._pid, signal.SIGKILL)

    def _hangs(self, what: str) -> None:
        """Write the stacks of all processes, and give up the job."""
        folder = self._work / f"stacks-{self._life}"
        for again in range(2):
            faults.take_stacks(self._processes(), self._pid, folder / str(again))
            time.sleep(2.0)
        msg = (
            f"the job hangs in life {self._life}: {what}; stacks are in {folder} and {self._said}."
        )
        raise EngineError(msg)

    def _step(self) -> int:
        """Return the newest committed step, -1 for none."""
        return _newest(self._work / "checkpoint" / "headgate" / "manifests")

    # -- the end ----------------------------------------------------------------------------------

    def _orphans(self) -> list[str]:
        """Return the processes that still run `_GONE_S` after the last life has ended."""
        faults.wait_until(lambda: not self._processes(), _GONE_S, 0.2)
        return [_described(one) for one in self._processes()]

    def _end_all(self) -> None:
        for one in self._processes():
            one.send(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def _judged(self) -> dict[str, Any]:
        found = child(self._command("judge"), self._environment(), self._chosen.patience_s)
        events = list(read_journal(self._work / "checkpoint" / "headgate" / "journal.jsonl"))
        late = sum(one.late for one in events if isinstance(one, Batch))
        if late:
            self._failed.append(f"{late} records were late, which none is")
        if not found["verified"]:
            self._failed.append(f"{found['missing']} rows are missing, {found['extra']} are extra")
        counted: dict[str, Callable[[object], bool]] = {
            "changes": lambda one: isinstance(one, AssignmentChange),
            "retries": lambda one: isinstance(one, Retry),
        }
        return found | {
            "steps": self._step() + 1,
            "late": late,
            **{name: sum(map(is_one, events)) for name, is_one in counted.items()},
        }


def _newest(folder: Path) -> int:
    """Return the largest number that is a file name in a log's folder, -1 for none."""
    try:
        names = os.listdir(folder)
    except OSError:
        return -1
    return max((int(n) for name in names if (n := name.partition(".")[0]).isdecimal()), default=-1)


def _shared_memory() -> str:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else tempfile.gettempdir()


def _described(one: faults.Process) -> str:
    what = one.what.replace(b"\0", b" ").decode(errors="replace")
    return f"process {one.pid} ({one.state}, parent {one.parent}): {what[:120]}"
