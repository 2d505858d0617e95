"""What somebody might type, or leave in a file, to make the command line fall over; nothing random."""

from __future__ import annotations

import gzip
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import runs

from headgate.journal import Decided, Wish
from headgate.journal.codec import encode
from headgate.journal.schema import ControlAct, Retry, Stop

SEED = 20261122
CALLS = 300

DIGITS = "9" * 30
DEEP = 100_000

NUMBERS = (
    "nan", "inf", "-inf", "1e300", "1e308", "-1", "0", "1e-300", "1e-9", DIGITS, "9" * 5000,
    "1_000", "٣", "0x10", "", " ", "1e309", "-0", "999999999999", "1\x1b[2J", "-" + DIGITS,
    str(2**31), str(2**63), "1e18", "True",
)  # fmt: skip
DURATIONS = (
    "-1s", "1e300s", "9" * 400 + "s", "nan s", "0s", "1", "1 fortnight", "999999999999 d",
    "1s" * 5000, "\x1b[31m1s", "", "99999999999999999999 s", "0.0000000001 us", "1s\n2s", "٣s",
)  # fmt: skip
SIZES = (
    "-1 GB", "1", "1e300 GB", "9" * 400 + " TB", "nan GB", "0 B", "", "1 XB", "999999999999 TB",
)  # fmt: skip
RATES = (
    "1e300", "nan", "inf", "-5", "1e-300", "sine(base=1e308, amplitude=1e308)", "sine(" * 2000,
    "steps(1, 1s=nan)", "steps(1, 1s=1e300)", "spike(base=1, factor=inf, start=0s, stop=1s)",
    "constant(rate=1e300)", "sine(base=1, amplitude=1, period=1e300s)", "exchange(speed=1e300)",
    "exchange(speed=1e-300)", "square(first=1,next=1,period=99999999999999s)", "\x1b[2J", "",
    "sine(base=1)(", DIGITS,
)  # fmt: skip
SLOS = (
    "mean < 1 s over 1 s", "mean < nan s over 1 s", "mean < 1e300 s over 1 s", "", "\x1b]0;x\x07",
    "mean < 1 s over 999999999999 d", "p200 < 1 s over 1 s", "mean < 1 s over 1 s in 900 % of windows",
    "operator x: mean < 1 s over 1 s", "operator x: p95 < 1 s over 1 s", "juice >= 2",
    "throughput >= 1 / " + "x" * 9999, "mean < " + "9" * 5000 + " s over 1 s", "< < <", "1s over",
    "mean < 0.0000001 us over 1 s", "throughput >= 1.2.3 / s", "throughput >= 1 / us",
)  # fmt: skip
POLICIES = (
    "ds2(9)", "ds2(9))", "static(8", "static(9999999999999999999999)", "static(" + "9" * 5000 + ")",
    "streamswitch(nan)", "streamswitch(inf)", "streamswitch(1e300)", "streamswitch(-1)", "psps",
    "dabs", "nosuch", "", ",", "static(2),", "static(2)," * 300, "threshold(nan, inf)", "drs(1e308)",
    "static(2)static(3)", "streamswitch(0.2)\x1b[2J", "predictive(nan)", "unified(1e300)",
    "((((", "static(n=2,n=3)", "dhalion(1e-300)", "packing(1)", "conttune(3, 1e300)",
    "daedalus(60, 1e300)", "daedalus(1e-300)",
)  # fmt: skip
MIGRATIONS = ("subscale(per_host=-1)", "subscale(per_host=" + DIGITS + ")", "fluid(", "nosuch", "")
WORKLOADS = (
    "json:loads", "os:nothing", "a:b:c", ":", "x:", ":x", "nosuch", "nexmark-q5\x1b[2J",
    "a" * 100_000, "..:x", "nexmark-q5", "word-count", "sdsc", "nexmark", "word", "json:JSONDecoder",
    "builtins:len", "math:pi", "x\0y:z", "\udcff:x", "é:é", "builtins:dict", "word-count\n\nnew",
    "builtins:exit", "headgate.cli:main", "sys:exit",
)  # fmt: skip
OPTIONS = (
    "nosuch=1", "keys=1000000", "a", "=", "=1", "a=" + "9" * 5000, "rate=nan", "seed=-1",
    "x=" + "[" * DEEP, "x=" + '{"a":' * DEEP, "rows_per_batch=1e300", "batches=999999999999",
    "seed=" + DIGITS, "seconds=1e300", "seconds=nan", "keys=", "rate=", "slots=0", "slots=true",
    "rate=sine(base=1e308,amplitude=1e308)", "directory=\0", "timeout_s=nan", "path=/dev/zero",
    "path=fifo", "a\x1b[2J=1", "spark=1", "readers=999999999", "records=1e30", "jobs=-1",
    "Infinity=Infinity", "seed=NaN", "hot=Infinity", "state=1", "engines=nosuch", "policies=,",
    "keys=[1]", "engines=" + "x" * 10_000, "self=1", "at=never",
)  # fmt: skip
NAMES = ("time", "", "nosuch", "\x1b[2J", "a" * 10_000, "count", "key", "\0", "\udcff")
COMMAND_TEXTS = ("", "x", "\x1b[2J", "a" * 100_000, "\0", "\udcff", "two\nlines", "\u202egnp.exe")
BENCHMARKS = (
    "aggregate", "overhead", "kill", "isolation", "replicas", "repartition", "slo", "operators",
    "fleet", "fleet-utility", "henge", "steady", "spill", "far", "phases", "rescale", "tuple-buffer",
    "together", "nosuch", "",
)  # fmt: skip
FIGURES = (
    "nosuch",
    "",
    "streamswitch-5",
    "traces",
    "unified",
    "\x1b[2J",
    "../../etc",
    "a" * 10_000,
)

_START = json.loads(encode(runs.start()))
_BATCH = json.loads(encode(runs.batch(0)))
_DECIDED = json.loads(
    encode(
        Decided(
            "streamswitch(0.2)", "severe", "slow", True, (Wish("a", "scale-out", 3, 4),), at_ms=9
        )
    )
)
_STOP = json.loads(encode(Stop("user", at_ms=99)))
_ROUND = {
    "event": "fleet-round", "time_s": 1.0, "jobs": [], "utility": 1.0, "utility_max": 1.0,
    "slots": 2, "slots_max": 4, "congested": False, "at_ms": 5,
}  # fmt: skip
_FLEET = {
    "event": "fleet-start", "policy": "henge", "slots_max": 4, "round_s": 1.0, "version": 1,
    "at_ms": 1,
}  # fmt: skip

CONTROL = "\x1b[2J\x1b]0;owned\x07\r\x9b31m\u202e\u2028"
"""What a terminal obeys."""

_VALUES: tuple[tuple[str, str], ...] = (
    ("nan", "NaN"), ("inf", "Infinity"), ("big", "1e999"), ("long", DIGITS), ("longer", "9" * 5000),
    ("large", "1e300"), ("minus", "-1"), ("zero", "0"), ("below", "-1e300"), ("text", '"x"'),
    ("null", "null"), ("list", "[]"), ("deep", "[" * DEEP + "]" * DEEP), ("fraction", "0.5"),
    ("int64", str(2**63 - 1)), ("late", "99999999999999999"), ("trillion", "999999999999"),
)  # fmt: skip
"""Values of JSON, as text, that stand in place of a journal's own."""

_FIELDS = {
    "start": ("at_ms", "slots", "key_groups", "parameters", "workload", "version", "floor_ms"),
    "batch": (
        "at_ms", "step", "duration_ms", "slots", "arrived", "served", "phases_ms", "histogram",
        "slot_stats", "hottest", "latency_ms", "backlog", "backlog_bytes", "state_bytes", "slo",
        "watermark_us", "arrivals", "late",
    ),
    "decision": ("at_ms", "wishes", "observed", "numbers"),
    "round": ("time_s", "jobs", "utility", "utility_max", "slots", "at_ms"),
}  # fmt: skip


def journals() -> Iterator[tuple[str, bytes]]:
    """Yield the names and bytes of journals, good ones first."""
    lines = [_START, _BATCH, _DECIDED, _STOP]
    yield "good", _lines(lines)
    yield "control", _lines([{**_START, "workload": CONTROL}, _BATCH, *_controlled()])
    yield "fleet", _lines([_FLEET, _ROUND])
    yield "fleet-control", _lines([{**_FLEET, "policy": CONTROL}, _ROUND])
    yield "empty", b""
    yield "torn", _lines(lines)[:-5]
    yield "bytes", b"\xff\xfe\x00\n" * 9
    yield "nothing-but-braces", b"{" * DEEP + b"\n"
    yield "long-line", b'{"event":"start","x":"' + b"a" * (1 << 20) + b'"}\n'
    yield "no-newline", b"a" * (1 << 20)
    yield "number", b"1\n"
    yield "no-start", _lines([_BATCH])
    yield "nulls", b"\0" * 4096 + b"\n"
    for kind, fields in _FIELDS.items():
        for field in fields:
            for name, value in _VALUES:
                yield f"{kind}-{field}-{name}", _with(kind, field, value)
    yield "inside-latency", _lines([_START, {**_BATCH, "latency_ms": _latency(1e300)}] * 3)
    yield "inside-histogram", _lines([_START, {**_BATCH, "histogram": [[0.0, 0], [1e300, -5]]}])
    yield "inside-phases", _lines([_START, {**_BATCH, "phases_ms": {CONTROL: 1e308, "b": "x"}}])
    yield "inside-hottest", _lines([_START, {**_BATCH, "hottest": [[10**40, 10**40]]}])


def recorded_runs() -> Iterator[tuple[str, bytes]]:
    """Yield journals with batches enough for a replay."""
    start = {
        **_START,
        "parameters": {"policy": "static", "slots_max": 4, "slo": ["mean < 1 s over 1 s"]},
        "key_groups": 4,
    }

    def batches(**given: Any) -> list[dict[str, Any]]:
        arrived = {"operator": "a", "groups": [0, 1], "records": [5, 5]}
        return [
            {**_BATCH, "step": n, "at_ms": 10_000 + 500 * n, "arrivals": [arrived], **given}
            for n in range(60)
        ]

    def arrivals(groups: list[int], records: list[int]) -> list[dict[str, Any]]:
        return [{"operator": "a", "groups": groups, "records": records}]

    yield "good", _lines([start, *batches()])
    yield "many", _lines([start, *batches(arrivals=arrivals([0], [10**12]))])
    yield "outside", _lines([start, *batches(arrivals=arrivals([10**9], [1]))])
    yield "negative", _lines([start, *batches(arrivals=arrivals([-1], [-5]))])
    yield "uneven", _lines([start, *batches(arrivals=arrivals([0, 1], [5]))])
    yield "groups", _lines([{**start, "key_groups": 10**12}, *batches()])
    far = [{**one, "at_ms": one["at_ms"] * 10**7} for one in batches()]
    yield "far", _lines([start, *far])
    yield "still", _lines([start, *batches(at_ms=5)])
    yield "no-work", _lines([start, *batches(slots=0, served=0)])
    for name, value in (
        ("policy", "nosuch("), ("slots_max", 10**30), ("slots_max", "x"), ("slo", 5), ("slo", [5]),
        ("slo", ["x"]), ("cores", -1), ("cores", "x"), ("budget_s", 1e300), ("budget_s", "x"),
        ("slot_rate", 1e-300), ("slot_rate", 0), ("floor_s", -1), ("slots_min", 10**30),
        ("slots_min", 0), ("slots_max", 0), ("cores", 10**30),
    ):  # fmt: skip
        given = {**start["parameters"], name: value}
        yield f"{name}-{str(value)[:8]}", _lines([{**start, "parameters": given}, *batches()])


def traces() -> Iterator[tuple[str, bytes]]:
    """Yield the names and bytes of traces, a good one first."""
    yield "good.csv", b"time,key\n" + b"".join(b"%d,%d\n" % (i % 5, i) for i in range(50))
    yield "far.csv", b"time,key\n0,a\n1e15,b\n"
    yield "farther.csv", b"time,key\n0,a\n1e300,b\n"
    yield "week.csv", b"time,key\n0,a\n99999999,b\n"
    yield "nan.csv", b"time,key\nnan,a\n1,b\n"
    yield "inf.csv", b"time,key\ninf,a\n1,b\n"
    yield "minus.csv", b"time,key\n-1,a\n"
    yield "counts.csv", b"time,key,count\n0,a,1e300\n1,b,1e300\n"
    yield "large-counts.csv", b"time,key,count\n0,a,999999999999\n1,b,5\n"
    yield "nan-counts.csv", b"time,key,count\n0,a,nan\n"
    yield "fractions.csv", b"time,key,count\n0,a,0.1\n1,b,0.2\n"
    yield "no-counts.csv", b"time,key,count\n0,a,0\n1,b,0\n"
    yield "texts.csv", b"time,key\nx,y\n"
    yield "header.csv", b"time,key\n"
    yield "empty.csv", b""
    yield "bytes.csv", bytes(range(256)) * 9
    yield "twice.csv", b"time,time,key\n1,2,3\n"
    yield "uneven.csv", b"time,key\n1\n1,2,3\n"
    yield "escape.csv", b"\x1b[2Jtime,\x1b]0;x\x07key\n1,2\n"
    yield "one-line.csv", b"a" * (1 << 20)
    yield "columns.csv", b",".join(b"c%d" % i for i in range(20_000)) + b"\n"
    yield "nulls.csv", b"time,key\n,\n,\n"
    yield "int64.csv", b"time,key\n9223372036854775807,1\n"
    yield "more.csv", b"time,key\n99999999999999999999999,1\n"
    yield "quote.csv", b'time,key\n1,"abc\n'
    yield "false.csv.gz", b"no gzip"
    yield "bomb.csv.gz", gzip.compress(b"time,key\n" + b"1,1\n" * (1 << 21))


_JOB = '[jobs.a]\nquery = "word-count"\nslo = "mean < 1 s over 1 s"\n'


def fleets() -> Iterator[tuple[str, bytes]]:
    """Yield the names and bytes of descriptions of fleets, a good one first."""
    texts = {
        "good": _JOB,
        "deep-list": "a = " + "[" * DEEP + "]" * DEEP,
        "deep-table": "a = " + "{a = " * DEEP + "1" + "}" * DEEP,
        "deep-key": "a" + ".a" * DEEP + " = 1",
        "deep-name": "[" + "a" + ".a" * DEEP + "]",
        "number": f"a = {'9' * 5000}",
        "float": "[fleet]\nslots = 1e300",
        "date": "[fleet]\nslots = 9999-99-99",
        "slots": f"[fleet]\nslots = {DIGITS}\n{_JOB}",
        "round": f'[fleet]\nround = "999999999999 d"\n{_JOB}',
        "observe": f'[fleet]\nobserve = "1e300 s"\n{_JOB}',
        "actions": f"[fleet]\nmax_actions_per_minute = {DIGITS}\n{_JOB}",
        "policy": f'[fleet]\npolicy = "henge(9)"\n{_JOB}',
        "nan": _JOB + "priority = nan",
        "inf": _JOB + "priority = inf",
        "minus": _JOB + "priority = -1.0",
        "rate-nan": _JOB + "slot_rate = nan",
        "rate-inf": _JOB + "slot_rate = inf",
        "sink": _JOB + 'sink = {format = "nosuch"}',
        "sink-escape": _JOB + 'sink = {format = "\\u001B[2J"}',
        "sink-mode": _JOB + 'sink = {outputMode = "nosuch"}',
        "sink-deep": _JOB + "sink = {path = [[1]]}",
        "options": _JOB + "options = {nosuch = 1}",
        "options-rate": _JOB + "options = {rate = 1e300}",
        "options-nan": _JOB + "options = {rate = nan}",
        "operator": _JOB.replace("mean <", "operator x: mean <"),
        "query": _JOB.replace("word-count", "json:loads"),
        "query-escape": _JOB.replace("word-count", "\\u001B[2J"),
        "utility": _JOB + 'utility = "builtins:len"',
        "utility-raises": _JOB + 'utility = "sys:exit"',
        "slots-max": _JOB + f"slots = {{min = 1, max = {DIGITS}}}",
        "checkpoint": _JOB + 'checkpoint = "a\\u0000b"',
        "checkpoint-long": _JOB + f'checkpoint = "{"a/" * 5000}"',
        "trigger": _JOB + 'trigger = {processingTime = "999999999999 d"}',
        "name": _JOB.replace("jobs.a", 'jobs."\\u001B[2J"'),
        "not-utf8": "",
        "value-escape": '[fleet]\nslots = "\\u001B[2J"',
        "no-jobs": "[jobs]",
        "control-key": f'[fleet]\n"{chr(0x202E)}" = 1',
    }
    for name, text in texts.items():
        yield f"{name}.toml", b"\xff\xfe" if name == "not-utf8" else text.encode()


def scenarios() -> Iterator[tuple[str, bytes]]:
    """Yield what may stand in a checkpoint's ``scenario.json``."""
    good = {"workload": "word-count", "scale_at": [], "output": "/nope", "slo": []}
    yield "good", json.dumps(good).encode()
    yield "deep", b"[" * DEEP
    yield "bytes", b"\xff"
    yield "list", b"[]"
    for key, value in (
        ("workload", 5), ("workload", CONTROL), ("scale_at", [[1]]), ("scale_at", [["x", "y"]]),
        ("slots", 10**30), ("rate", "x"), ("rate", []), ("duration_s", "x"), ("output", 5),
        ("output", "a" * 5000), ("slo", 5), ("slo", [5]), ("options", 5), ("budget", 5),
        ("key_groups", 10**12), ("seed", "x"), ("nosuch", 1), ("slots", None), ("sink_format", "no"),
        ("migration", 5), ("slots_max", "x"), ("policy", 5), ("options", {"a b": 1}),
    ):  # fmt: skip
        yield f"{key}-{str(value)[:6]!a}", json.dumps({**good, key: value}).encode()


class Files:
    """A directory of hostile files.

    Parameters
    ----------
    root : Path
        Empty.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        self.fifo = root / "fifo"
        os.mkfifo(self.fifo)
        self.journals = self._written("journals", journals(), ".jsonl")
        self.runs = self._written("runs", recorded_runs(), ".jsonl")
        self.traces = self._written("traces", traces())
        self.fleets = self._written("fleets", fleets())
        self.checkpoints = [self._checkpoint(name, raw) for name, raw in scenarios()]

    def paths(self) -> tuple[str, ...]:
        """Return paths that are no file of ours."""
        return (
            str(self.root / "missing"), "/etc/passwd", "/dev/zero", "/dev/null", str(self.fifo),
            str(self.root), "a" * 300, "a/" * 3000, "x\0y", "\x1b]0;x\x07", "s3://b", "hdfs:/x",
            "", "/proc/self/mem", "\udcff", "-", "/proc/1/fd/1", "x.svg/y.svg", "/nope/x.svg",
            "/dev/full", str(self.root / "\x1b[2J"), "file:///nope", "/",
        )  # fmt: skip

    def _written(
        self, folder: str, files: Iterator[tuple[str, bytes]], ending: str = ""
    ) -> list[str]:
        (self.root / folder).mkdir()
        paths = []
        for name, raw in files:
            path = self.root / folder / f"{name}{ending}"
            path.write_bytes(raw)
            paths.append(str(path))
        return paths

    def _checkpoint(self, name: str, raw: bytes) -> str:
        path = self.root / f"checkpoint-{name}"
        (path / "headgate").mkdir(parents=True)
        (path / "scenario.json").write_bytes(raw)
        (path / "headgate" / "journal.jsonl").write_bytes(_lines([_START, _BATCH]))
        return str(path)


def calls(files: Files, count: int = CALLS, seed: int = SEED) -> list[list[str]]:
    """Return command lines: each command in turn, with values drawn from what is hostile to it."""
    draw = random.Random(seed)
    paths = files.paths()

    def journal() -> str:
        return draw.choice([*files.journals, *files.runs, *paths, *files.checkpoints])

    def some(given: dict[str, Any], most: int = 2) -> list[str]:
        words: list[str] = []
        for name in draw.sample(sorted(given), min(len(given), draw.randint(1, most))):
            values = given[name]
            words += [name] if values is None else [f"{name}={draw.choice(values)}"]
        return words

    def run() -> list[str]:
        where = ["--checkpoint", str(files.root / f"ck{draw.randrange(10**9)}")]
        options = {
            "--rate": RATES, "--speed": NUMBERS, "--duration": DURATIONS, "--slots": NUMBERS,
            "--scale-at": [f"{t}={n}" for t in DURATIONS for n in NUMBERS], "--slo": SLOS,
            "--key-groups": NUMBERS, "--budget": DURATIONS, "--policy": POLICIES, "--seed": NUMBERS,
            "--slots-max": NUMBERS, "--slot-rate": NUMBERS, "--migration": MIGRATIONS,
            "--floor": DURATIONS, "--checkpoint": paths, "--out": paths, "--option": OPTIONS,
            "--format": COMMAND_TEXTS,
        }  # fmt: skip
        workload = draw.choice(WORKLOADS) if draw.random() < 0.3 else "nexmark-q5"
        return ["run", *where, workload, *some(options, 1)]

    def simulate() -> list[str]:
        trace = draw.choice([*files.traces, *paths]) if draw.random() < 0.6 else files.traces[0]
        options = {
            "--policy": POLICIES, "--slots-max": NUMBERS, "--key-groups": NUMBERS,
            "--mode": COMMAND_TEXTS, "--speed": NUMBERS, "--seed": NUMBERS, "--out": paths,
            "--time-column": NAMES, "--key-column": NAMES, "--count-column": NAMES,
            "--cost-column": NAMES, "--slice": DURATIONS, "--cores": NUMBERS,
            "--budget": DURATIONS, "--slot-rate": NUMBERS,
        }  # fmt: skip
        rate = draw.choice(NUMBERS) if draw.random() < 0.2 else "10"
        slo = draw.choice(SLOS) if draw.random() < 0.2 else SLOS[0]
        return ["simulate", trace, f"--slo={slo}", f"--service-rate={rate}", *some(options, 1)]

    def verify() -> list[str]:
        options = {"--out": paths, "--option": OPTIONS}
        words = ["verify", draw.choice([*files.checkpoints, *paths])]
        named = [draw.choice(WORKLOADS)] if draw.random() < 0.5 else []
        return [*words, *named, *some(options, 1)]

    def bench() -> list[str]:
        options = {
            "--count": NUMBERS, "--seed": NUMBERS, "--state": SIZES, "--only": COMMAND_TEXTS,
            "--store-delay": DURATIONS, "--option": OPTIONS, "--cluster": None,
        }  # fmt: skip
        return ["bench", draw.choice(BENCHMARKS), *some(options)]

    def ask() -> list[str]:
        act = draw.choice(("freeze", "thaw", "rollback", "scale"))
        checkpoint = draw.choice([*files.checkpoints, *paths])
        words = [act, checkpoint, f"--reason={draw.choice(COMMAND_TEXTS)}"]
        words.append(f"--wait={draw.choice([*DURATIONS, '1 ms', '1 ms', '1 ms'])}")
        words += {
            "freeze": [f"--for={draw.choice(DURATIONS)}"],
            "rollback": [f"--to-epoch={draw.choice(NUMBERS)}"],
            "scale": ["--", draw.choice(NUMBERS)],
        }.get(act, [])
        return words

    def why() -> list[str]:
        return ["why", journal(), f"--at={draw.choice([*DURATIONS, '99:99', '9' * 99 + ':00'])}"]

    def replay() -> list[str]:
        options = {
            "--since": DURATIONS, "--slots-max": NUMBERS, "--policy": POLICIES, "--slo": SLOS,
            "--like": [*files.runs, *paths], "--seed": NUMBERS,
        }  # fmt: skip
        return ["replay", draw.choice([*files.runs, *files.runs, journal()]), *some(options, 1)]

    def doctor() -> list[str]:
        masters = (
            "nosuch",
            "local[0]",
            "local[x]",
            "local[" + DIGITS + "]",
            "spark://",
            "",
            "\x1b",
        )
        return ["doctor", *some({"--master": masters, "--state": SIZES, "--checkpoint": paths}, 1)]

    def fleet_run() -> list[str]:
        options = {"--duration": DURATIONS, "--work": paths, "--check": None, "--advise": None}
        return ["fleet", "run", draw.choice([*files.fleets, *paths]), *some(options, 1)]

    makers = (
        run, run, simulate, simulate, verify, bench, bench, ask, why, replay, doctor, fleet_run,
        lambda: ["status", journal()],
        lambda: ["status", journal(), "--json"],
        lambda: ["status", draw.choice(files.journals), f"--svg={draw.choice(paths)}"],
        lambda: ["top", journal()],
        lambda: ["inspect", draw.choice([*paths, *files.checkpoints]), "--verify"],
        lambda: ["explain", draw.choice(WORKLOADS), f"--option={draw.choice(OPTIONS)}"],
        lambda: ["fleet", "check", draw.choice([*files.fleets, *paths])],
        lambda: ["fleet", "status", journal(), f"--since={draw.choice(DURATIONS)}"],
        lambda: ["figure", draw.choice(FIGURES), f"--out={draw.choice(paths)}"],
        lambda: ["figure", draw.choice(FIGURES), f"--data={draw.choice(paths)}"],
        lambda: [draw.choice(("nosuch", "\x1b[2J", "run", "fleet", "why", "scale", "--nosuch"))],
    )  # fmt: skip
    return [makers[number % len(makers)]() for number in range(count)]


def _lines(events: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in events)


def _with(kind: str, field: str, value: str) -> bytes:
    """Return a journal in which one field of one event has another value, written as it is."""
    events = {
        "start": [_START, _BATCH], "batch": [_START, _BATCH, _BATCH],
        "decision": [_START, _DECIDED], "round": [_FLEET, _ROUND],
    }[kind]  # fmt: skip
    *before, last = (json.dumps(one) for one in events)
    if kind == "start":
        before, last = [], before[0]
    found = json.loads(last)
    found[field] = "HOSTILE"
    text = json.dumps(found).replace('"HOSTILE"', value)
    after = [json.dumps(_BATCH)] if kind == "start" else []
    return "".join(f"{line}\n" for line in (*before, text, *after)).encode()


def _controlled() -> list[dict[str, Any]]:
    """Return events whose texts are for a terminal."""
    events = (
        ControlAct("freeze", CONTROL, CONTROL, CONTROL, CONTROL, at_ms=5),
        Retry(3, 1, CONTROL, at_ms=6),
        Decided(CONTROL, CONTROL, CONTROL, True, (Wish(CONTROL, CONTROL, 3, 4),), at_ms=7),
        Stop(CONTROL, CONTROL, at_ms=8),
    )
    return [json.loads(encode(event)) for event in events]


def _latency(value: float) -> dict[str, float]:
    return dict.fromkeys(("mean", "p50", "p95", "p99", "max"), value)
