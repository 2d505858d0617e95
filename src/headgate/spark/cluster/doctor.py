"""Checks every executor before a job runs, and describes each problem in one sentence."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headgate.core.errors import CheckpointError
from headgate.core.size import format_bytes, parse_bytes
from headgate.core.stores import store_url
from headgate.spark.cluster.host_facts import HostFacts, answer_name, collect_facts
from headgate.spark.cluster.location import check_seen, resolved
from headgate.spark.cluster.session import SETTINGS, session
from headgate.spark.cluster.store_mark import StoreMark, marked_store
from headgate.spark.jvm import contract
from headgate.spark.jvm.errors import JvmError
from headgate.spark.jvm.executors import ExecutorPool
from headgate.spark.jvm.gateway import require_session
from headgate.spark.jvm.minors import adapter
from headgate.spark.jvm.sessions import jvm_alone
from headgate.spark.move.placement import Placement

CLOCK_MAX_S = 0.1
"""Largest offset of a clock: a latency begins by the source's clock and ends by the slot's, so the offset
must not exceed a tick of the control loop."""

_HOLD_S = 0.15
"""Time that each task holds its core, so that every executor gets a task. Chosen, not tuned."""

_ROUNDS = (2, 8)
"""Least and most jobs: the first job is slow and says little about clocks, and a busy executor may get
its task late."""

_SETTLED_S = 1.5
_REGISTER_S = 30.0
"""`_SETTLED_S`, `_REGISTER_S`: time without a new executor that ends the wait, and longest wait."""


@dataclass(frozen=True)
class Needs:
    """Holds the demands of a job on each host."""

    state_bytes: int
    """State that one host may have to hold: the whole state, if the other hosts are lost."""


def doctor(
    spark: SparkSession, *, state: str = "1 GB", checkpoint: str | None = None
) -> dict[str, Any]:
    """Check every executor of a session, and return the problems that a query would have.

    Parameters
    ----------
    spark : SparkSession
        A classic session; it is not changed.
    state : str
        Size of the state that a host must be able to hold, with its unit.
    checkpoint : str, optional
        An existing directory that driver and executors must see alike, written as for a query; or a
        place on a store, with credentials from the environment.

    Returns
    -------
    dict
        sound: whether there are no problems; problems and advice: a sentence each; executors: the facts
        of each, with ``clock_off_s``; placement: whether slots can be bound to hosts, None with a
        single host; unchecked: the checks that were not made.

    Raises
    ------
    ConfigError
        `state` is no size.
    HeadgateError
        The session is Spark Connect.
    """
    require_session(spark, "hg.doctor: spark")
    needs = Needs(parse_bytes(state))
    answer: dict[str, Any] = {"master": str(spark.sparkContext.master), "executors": []}
    pool = ExecutorPool(spark)
    problems = [*_contract(spark), *_speculation(spark)]
    if not pool.local and not _wait_for_executors(pool):
        problems.append(
            f"no executor has come from {answer['master']} within {_REGISTER_S:g} s; start workers "
            "there, or free cores and memory."
        )
        return answer | _outcome(problems, [], None, ["executors"])
    unchecked = [] if checkpoint else ["checkpoint (name it with --checkpoint)"]
    with _leave_mark(spark, checkpoint) as (mark, unusable):
        problems += unusable
        try:
            seen = _everybody(spark, pool, mark)
        except (JvmError, PySparkException) as error:
            problems.append(_unreachable(error))
            return answer | _outcome(problems, _settings(spark), None, ["executors"])
        driver = collect_facts()
        problems += [text for host in seen.values() for text in judge(*host, driver, needs)]
        if isinstance(mark, Path):
            problems += _unanswered(mark, seen)
    reached = {facts.executor for facts, _ in seen.values()}
    problems += [
        f"executor {host.id} on {host.host} ran no task within {_ROUNDS[1]} jobs; look into its log, or "
        "wait until it is less busy."
        for host in pool.living()
        if host.id not in reached
    ]
    hosts = {host.host for host in pool.living()}
    placed = Placement(spark).active if len(hosts) > 1 else None
    if placed is False:
        problems.append(
            "slots cannot be bound to hosts, since this Spark lacks the private classes for it; run "
            "Apache Spark's own build, or expect slots to catch up from the changelog in every batch."
        )
    answer["executors"] = [asdict(facts) | {"clock_off_s": off} for facts, off in seen.values()]
    return answer | _outcome(problems, _settings(spark), placed, unchecked)


def run(
    master: str | None = None,
    *,
    state: str = "1 GB",
    checkpoint: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Start a session at `master`, as a job would, and return the result of `doctor`."""
    parse_bytes(state)  # before Spark starts, not after
    spark = session(master, name="headgate-doctor", **(conf or {}))
    try:
        return doctor(spark, state=state, checkpoint=checkpoint)
    finally:
        spark.stop()


def check_contract() -> dict[str, Any]:
    """Compare the private members that headgate calls with those of Spark, without a session.

    Returns sound; contract: minor (the release that Spark is taken for), members (the number compared);
    problems: a sentence for each member that is absent.
    """
    java, minor = jvm_alone(), adapter().name
    members = [call for call in contract.calls() if minor in call.minors]
    problems = [
        f"this Spark lacks {call}, which headgate calls in Spark {minor}; run Apache Spark {minor}, or a "
        "build that has it."
        for call in contract.absent(java, members)
    ]
    seen = {"minor": minor, "members": len(members)}
    return {"sound": not problems, "contract": seen, "problems": problems}


def _contract(spark: SparkSession) -> list[str]:
    """Return a sentence if this Spark lacks methods of its minor release, as a vendor's build may."""
    gone = contract.missing(spark, adapter().name)
    if not gone:
        return []
    return [
        f"this Spark {spark.version} lacks {len(gone)} of the methods that headgate calls in Spark "
        f"{adapter().name}, such as {gone[0]}; run Apache Spark {adapter().name}, or a build that has "
        "them."
    ]


def _outcome(
    problems: list[str], advice: list[str], placement: bool | None, unchecked: list[str]
) -> dict[str, Any]:
    return {
        "sound": not problems,
        "problems": problems,
        "advice": advice,
        "placement": placement,
        "unchecked": unchecked,
    }


# -- judging: pure functions of the facts --------------------------------------------------------


def judge(facts: HostFacts, off_s: float, driver: HostFacts, needs: Needs) -> list[str]:
    """Return the problems of an executor, one sentence each.

    `facts`: facts of the executor. `off_s`: least lead of its clock over the driver's, in seconds.
    """
    who = f"executor {facts.executor} on {facts.host}"
    return [
        f"{who} {text}"
        for text in (
            *_wrong_versions(facts, driver),
            *_wrong_arena(facts, needs),
            *_wrong_limits(facts, needs),
            *_wrong_clock(off_s),
            *_wrong_checkpoint(facts),
            *_wrong_store(facts),
        )
    ]


def _wrong_versions(facts: HostFacts, driver: HostFacts) -> Iterator[str]:
    for name, wanted in driver.versions.items():
        has = facts.versions.get(name)
        # workers of another patch release of Python run the same bytecode
        same = _minor(has) == _minor(wanted) if name == "python" else has == wanted
        if not same:
            yield f"has {name} {has or 'not at all'}, the driver {wanted}; install the same there."


def _minor(version: str | None) -> str:
    return (version or "").rpartition(".")[0]


def _wrong_arena(facts: HostFacts, needs: Needs) -> Iterator[str]:
    if facts.arena_problem is not None:
        where = f" in {facts.arena}" if facts.arena else ""
        yield (
            f"cannot keep state{where}: {facts.arena_problem}; make room there, or set "
            "HEADGATE_ARENA_DIR."
        )
    elif facts.arena_free_bytes < needs.state_bytes:
        yield (
            f"has {format_bytes(facts.arena_free_bytes)} of {format_bytes(facts.arena_bytes)} free in "
            f"{facts.arena}, the state needs {format_bytes(needs.state_bytes)}; mount a larger one "
            "(Kubernetes: an emptyDir with medium Memory at /dev/shm), or set HEADGATE_ARENA_DIR."
        )


def _wrong_limits(facts: HostFacts, needs: Needs) -> Iterator[str]:
    least = facts.mapped_bytes + needs.state_bytes
    if facts.address_bytes is not None and facts.address_bytes < least:
        yield (
            f"limits a Python worker to {format_bytes(facts.address_bytes)} of addresses, and state "
            f"and code need {format_bytes(least)}; raise spark.executor.pyspark.memory or unset it."
        )
    if facts.disk_free_bytes < needs.state_bytes:
        yield (
            f"has {format_bytes(facts.disk_free_bytes)} free in {facts.disk} for shuffles; free "
            f"{format_bytes(needs.state_bytes)}, or set spark.local.dir."
        )


def _wrong_clock(off_s: float) -> Iterator[str]:
    if abs(off_s) > CLOCK_MAX_S:
        way = "ahead of" if off_s > 0 else "behind"
        yield (
            f"has a clock at least {abs(off_s):.3g} s {way} the driver's, which every latency is off "
            "by; synchronise it (NTP, chrony)."
        )


def _wrong_checkpoint(facts: HostFacts) -> Iterator[str]:
    if facts.checkpoint_problem is not None:
        yield (
            f"cannot use the checkpoint directory: {facts.checkpoint_problem}; mount the same file "
            "system there, for the same user."
        )


def _wrong_store(facts: HostFacts) -> Iterator[str]:
    if facts.store_problem is not None:
        yield f"cannot use the checkpoint's store: {facts.store_problem}"


def _speculation(spark: SparkSession) -> list[str]:
    if spark.sparkContext.getConf().get("spark.speculation", "false") != "true":
        return []
    return ["spark.speculation is true; two live attempts of a slot waste work, so switch it off."]


def _settings(spark: SparkSession) -> list[str]:
    """Return for each missing setting of `hg.session` its benefit."""
    return [
        f"{setting.key} is not {setting.value}; with it, {setting.why}."
        for setting in SETTINGS
        if spark.conf.get(setting.key, None) != setting.value
    ]


_CAUSES = {
    r"No module named '([\w.]+)'": "executors have no Python module {0}; install headgate and what it "
    "needs for their Python (spark.pyspark.python), or ship it with spark.archives.",
    r"PYTHON_VERSION_MISMATCH\] (.*?\d)\.? ": "{0}; start both with the same minor version of Python "
    "(spark.pyspark.python).",
    r'Cannot run program "([^"]+)"': "executors cannot start {0}; set spark.pyspark.python to a Python "
    "that is there.",
}


def _unreachable(error: Exception) -> str:
    """Return why no task ran, in one sentence."""
    text = str(error)
    for pattern, sentence in _CAUSES.items():
        match = re.search(pattern, text, re.DOTALL)
        if match:
            return sentence.format(*match.groups())
    first = next((line for line in text.splitlines() if "Exception" in line), text)
    return f"no task ran on the executors: {first.strip()[:300]}; look into their logs."


# -- looking -------------------------------------------------------------------------------------


def _wait_for_executors(pool: ExecutorPool) -> bool:
    """Wait until executors are there and no more come; return whether there are any."""
    deadline = time.monotonic() + _REGISTER_S
    known, since = len(pool.living()), time.monotonic()
    while time.monotonic() < deadline:
        if known and time.monotonic() - since > _SETTLED_S:
            return True
        time.sleep(0.1)
        if len(pool.living()) != known:
            known, since = len(pool.living()), time.monotonic()
    return known > 0


def _everybody(
    spark: SparkSession, pool: ExecutorPool, mark: Path | StoreMark | None
) -> dict[str, tuple[HostFacts, float]]:
    """Return the facts of each executor by its name, and the least offset of its clock."""
    seen: dict[str, tuple[HostFacts, float]] = {}
    for index in range(_ROUNDS[1]):
        tasks = max(1, pool.cores)
        began_s = time.time()
        said = spark.sparkContext.parallelize(range(tasks), tasks).map(_Look(mark)).collect()
        ended_s = time.time() - _HOLD_S
        for facts in said:
            off_s = _outside(facts.clock_s, began_s, ended_s)
            before = seen.get(facts.executor)
            # each job gives a lower bound for a clock's offset; a quick job gives the largest bound
            if before is None or abs(off_s) > abs(before[1]):
                seen[facts.executor] = (facts, off_s)
        if index + 1 >= _ROUNDS[0] and len(seen) >= len(pool.living()):
            break
    return dict(sorted(seen.items()))


def _outside(clock_s: float, began_s: float, ended_s: float) -> float:
    """Return how far a clock's reading lies outside of the time in which it was taken."""
    return max(clock_s - ended_s, 0.0) + min(clock_s - began_s, 0.0)


@dataclass(frozen=True)
class _Look:
    mark: Path | StoreMark | None

    def __call__(self, _: int) -> HostFacts:
        facts = collect_facts(self.mark)
        time.sleep(_HOLD_S)
        return facts


@contextmanager
def _leave_mark(
    spark: SparkSession, checkpoint: str | None
) -> Iterator[tuple[Path | StoreMark | None, list[str]]]:
    """Write a file into the checkpoint directory, remove it at the end; yield it, or the problems."""
    if checkpoint is None:
        yield None, []
        return
    try:
        url = store_url(checkpoint)
    except CheckpointError as error:
        yield None, [str(error)]
        return
    if url is not None:
        with marked_store(url) as stored:
            yield stored
        return
    try:
        mark = resolved(spark, checkpoint) / f".headgate-doctor-{secrets.token_hex(8)}"
        mark.write_text(secrets.token_hex(16))
        check_seen(spark, mark)
    except CheckpointError as error:
        yield None, [str(error)]
        return
    except FileNotFoundError:
        yield (
            None,
            [
                f"the checkpoint directory {checkpoint} does not exist; make it on a file "
                "system that every host mounts, or name the directory above it."
            ],
        )
        return
    except OSError as error:
        text = (
            f"the driver cannot write to the checkpoint directory {checkpoint} ({error.strerror})"
        )
        yield None, [f"{text}; give it one that it can."]
        return
    try:
        yield mark, []
    finally:
        for left in mark.parent.glob(f"{mark.name}*"):
            left.unlink(missing_ok=True)


def _unanswered(mark: Path, seen: Mapping[str, tuple[HostFacts, float]]) -> list[str]:
    """Return a sentence for each executor whose answer the driver does not see."""
    return [
        f"executor {facts.executor} on {facts.host} writes to a checkpoint directory that the driver "
        "does not see; mount the same file system there."
        for facts, _ in seen.values()
        if facts.checkpoint_problem is None
        and not answer_name(mark, f"{facts.executor}@{facts.host}").exists()
    ]
