"""Whatever is typed or read, the command line answers, or says in one sentence why it does not."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hostile
import pytest
import runs
from hypothesis import example, given
from hypothesis import strategies as st
from typer.main import get_command
from typer.testing import CliRunner

from headgate.cli import app
from headgate.core.errors import EngineError
from headgate.journal import Decided, Wish
from headgate.journal.codec import encode

CODES = (0, 1, 2, 3, 4, 130)
"""What docs/cli.md documents."""

LIMIT_S = 60
"""Of one call, on a busy machine; none needs more than a few seconds."""

MEMORY = 3 << 30
"""Addresses that calls may take besides what the tests hold already."""

SENTENCE = 1500
"""Characters; texts that somebody wrote are quoted in part."""

_RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029]")


class TookTooLong(BaseException):
    """No Exception: nothing between here and the call may swallow it."""


def _too_long(number: int, frame: object) -> None:
    raise TookTooLong


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """Bound the memory of this process; what starts Spark or another process ends at the gate."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    before = signal.signal(signal.SIGALRM, _too_long)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGALRM, before)


def wrong(call: list[str]) -> str | None:
    """Return what is wrong with the answer to a command line; None where nothing is."""
    signal.alarm(LIMIT_S)
    try:
        done = CliRunner().invoke(app, call)
    except TookTooLong:
        return f"no answer within {LIMIT_S} s"
    finally:
        signal.alarm(0)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return f"raised {done.exception!r:.300}"
    if done.exit_code not in CODES:
        return f"exit code {done.exit_code}"
    if "Traceback" in done.output:
        return "printed a traceback"
    shown = done.stdout + done.stderr
    if raw := _RAW.search(shown):
        return f"printed {raw[0]!r}"
    # an answer may end with another code than 0 as well: damage that was found, and help
    return None if done.exit_code == 0 or done.stdout else wrong_sentence(call, done.stderr)


def wrong_sentence(call: list[str], said: str) -> str | None:
    """Return what is wrong with what a command that failed said."""
    if call[0] == "bench":  # its progress goes to stderr as well
        said = "".join(said.splitlines(keepends=True)[-1:])
    if said.count("\n") != 1 or len(said) > SENTENCE or not said.startswith("headgate: "):
        return f"said {said!r:.200}"
    if re.match(r"headgate: \w*(Error|Exception|Exit|Warning)\b", said):
        return f"did not foresee {said!r:.200}"
    return None


def stop_at_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing start that takes longer than to refuse it."""
    # Made once: the runner would make all commands anew for each call, in a third of a second.
    command = get_command(app)
    monkeypatch.setattr("typer.testing._get_command", lambda _: command)

    def reached(*_: Any, **__: Any) -> Any:
        msg = "the call came through the gate."
        raise EngineError(msg)

    monkeypatch.setattr("headgate.scenario.spark.SparkEngine.session", reached)
    monkeypatch.setattr("headgate.spark.cluster.doctor.session", reached)
    monkeypatch.setattr("headgate_lab.bench.common.Input.write", reached)
    monkeypatch.setattr("headgate_lab.experiments.stretch.fig07.measure", reached)
    monkeypatch.setattr("headgate_lab.experiments.registry.run", reached)
    monkeypatch.setattr("headgate.whatif.parallel.ProcessPoolExecutor", reached)
    monkeypatch.setattr(subprocess, "Popen", reached)
    monkeypatch.setattr(subprocess, "run", reached)


def test_300_hostile_calls_are_answered_in_one_sentence_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stop_at_the_gate(monkeypatch)
    files = hostile.Files(tmp_path / "files")
    with limits():
        found = {" ".join(call)[:200]: why for call in hostile.calls(files) if (why := wrong(call))}
    assert not found


FAR = st.sampled_from([0, -1, 1, 2**31, 2**63, 10**30, -(10**30)])
JSON = st.recursive(
    st.none() | st.booleans() | FAR | st.floats() | st.text(max_size=8),
    lambda inside: (
        st.lists(inside, max_size=4) | st.dictionaries(st.text(max_size=6), inside, max_size=4)
    ),
    max_leaves=12,
)


def answered(call: list[str]) -> None:
    assert wrong(call) is None


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory to write in, where nothing starts Spark."""
    with pytest.MonkeyPatch.context() as patch:
        stop_at_the_gate(patch)
        with limits():
            yield tmp_path_factory.mktemp("gated")


@given(st.binary(max_size=300))
@example(b"[" * 100_000)
def test_any_bytes_are_a_journal_a_trace_and_a_fleet_or_refused(gated: Path, raw: bytes) -> None:
    path = gated / "any.csv"
    path.write_bytes(raw)
    for command in (["status"], ["why"], ["top"], ["fleet", "status"], ["replay"]):
        answered([*command, str(path)])
    answered(["simulate", str(path), "--slo", "mean < 1 s over 1 s", "--service-rate", "10"])
    answered(["fleet", "check", str(path)])


@given(st.data())
def test_any_json_in_place_of_an_events_fields_is_read_or_refused(
    gated: Path, data: st.DataObject
) -> None:
    events = [json.loads(encode(event)) for event in EVENTS]
    for event in events:
        fields = data.draw(st.lists(st.sampled_from(sorted(event)), max_size=2, unique=True))
        event |= {field: data.draw(JSON, label=field) for field in fields}
    path = gated / "journal.jsonl"
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    for command in (["status"], ["status", "--json"], ["why"], ["top"], ["fleet", "status"]):
        answered([*command, str(path)])


EVENTS = (
    runs.start(),
    runs.batch(0),
    Decided("streamswitch", "severe", "slow", True, (Wish("a", "scale-out", 3, 4),), at_ms=9),
    runs.change(1, 2, 3),
    runs.batch(1),
)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ["0", "1", "1.5", "nan", "inf", "-1", "1e15", "1e300", "x", "", '"', "é"]
            ),
            st.text(max_size=4),
            st.sampled_from(["1", "0", "7", "0.5", "nan", "1e300", "99999999999", "x", "-2", ""]),
        ),
        max_size=8,
    )
)
def test_any_trace_is_simulated_or_refused(gated: Path, rows: list[tuple[str, str, str]]) -> None:
    path = gated / "trace.csv"
    lines = ["time,key,count", *(",".join(row) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogatepass")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headgate.whatif.simulate.run_all", lambda *_: [])
        words = ["--slo", "mean < 1 s over 1 s", "--service-rate", "10", "--json"]
        answered(["simulate", str(path), *words])


KEYS = (
    "query", "slo", "priority", "utility", "sink", "checkpoint", "slots", "trigger", "options",
    "key_groups", "slot_rate", "nosuch",
)  # fmt: skip


def toml_of(value: Any) -> str:
    """Return a value as TOML writes it inline; null, which TOML has not, as an empty text."""
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key)} = {toml_of(inside)}" for key, inside in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_of, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return '""' if value is None else json.dumps(value)


@given(
    st.dictionaries(st.sampled_from(KEYS), JSON, max_size=3),
    st.dictionaries(
        st.sampled_from(["slots", "round", "policy", "goal", "hang"]), JSON, max_size=2
    ),
)
def test_any_toml_is_a_fleet_or_refused(
    gated: Path, job: dict[str, Any], fleet: dict[str, Any]
) -> None:
    own = {"query": "word-count", "slo": "mean < 1 s over 1 s", **job}
    tables = (("fleet", fleet), ("jobs.a", own))
    lines = [
        line
        for name, table in tables
        for line in (f"[{name}]", *(f"{key} = {toml_of(value)}" for key, value in table.items()))
    ]
    path = gated / "fleet.toml"
    path.write_text("\n".join(lines), encoding="utf-8", errors="surrogatepass")
    answered(["fleet", "check", str(path)])
    answered(["fleet", "run", str(path), "--check", "--json"])


@pytest.mark.parametrize(
    "words",
    [
        ["bench", "aggregate", "--option", "keys=ten"],
        ["explain", "json:loads"],
        ["run", "nexmark-q5", "--option", "nosuch=1"],
        ["run", "nexmark-q5", "--seed", "-1"],
        ["run", "nexmark-q5", "--seed", "9" * 30],
        ["run", "nexmark-q5", "--rate", "1e300"],
        ["run", "nexmark-q5", "--key-groups", "999999999999"],
        ["run", "nexmark-q5", "--out", "/etc/passwd"],
        ["run", "nexmark-q5", "--policy", "ds2(9))"],
        ["run", "nexmark-q5", "--format", "no such"],
        ["freeze", ".", "--reason", "x", "--for=-1s"],
        ["doctor", "--master", "nosuch"],
        ["doctor", "--state", "9" * 400 + " TB"],
    ],
)
def test_what_can_be_known_before_spark_starts_is_bad_input(
    gated: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(gated)
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2, done.output
    assert wrong(words) is None


def test_a_journals_control_characters_reach_neither_terminal_nor_picture(tmp_path: Path) -> None:
    path, picture = tmp_path / "journal.jsonl", tmp_path / "p.svg"
    path.write_bytes(dict(hostile.journals())["control"])
    assert wrong(["status", str(path), "--svg", str(picture)]) is None
    assert not _RAW.search(picture.read_text().replace("\t", " "))
    assert r"\x1b[2J" in CliRunner().invoke(app, ["status", str(path)]).stdout
    assert wrong(["why", str(path)]) is None
