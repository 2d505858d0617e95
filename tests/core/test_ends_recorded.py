"""Files, streams, addresses, plugins and frames of others, and what becomes of each, as recorded."""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import random
import socket
import sys
import time
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from headgate.core import errors, frames, installed, listening, quiet, stores
from headgate.core.assignment import Assignment, kept_split, rescale
from headgate.core.driver_lock import is_locked
from headgate.core.duration import at_text
from headgate.core.errors import EngineError, HeadgateError
from headgate.core.input import bounded, open_regular, read_file
from headgate.core.intents import utility_of
from headgate.core.slo import parse_slo
from headgate.core.utility import Custom, Intent, Metric, Piecewise, Step

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
Recorded = Callable[[str, Iterable[str]], None]


def told(do: Callable[[], Any]) -> str:
    """Return a value as text, or why there is none."""
    try:
        return f"{do()!r}"
    except (HeadgateError, OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


# --- Words ----------------------------------------------------------------------------------------------

STATISTICS = (
    "mean",
    "p50",
    "p99",
    "p99.9",
    "max",
    "juice",
    "throughput",
    "MEAN",
    "p97",
    "maximum",
    "",
)
SIGNS = ("<", "<=", ">", ">=", "", "=", "<<")
BOUNDS = (
    "1 s", "800ms", "2 min", "0.5", "95 %", "0.95", "500 records/s", "30 rows / min", "7/h", "5", "12",
    ".5 s", "1e3 s", "0 s", "200 years", "1.5 kg", "x", "-1 s", "1.2.3/s", "5 records/fortnight",
)  # fmt: skip
WINDOWS = (
    "",
    " over 1 s",
    " over 10",
    " over 2 min",
    " over 0 s",
    " OVER 1 h",
    " over",
    " over 1 us",
)
SHARES = ("", "", " in 95 % of windows", " in 0.9 of windows", " in 99 of windows", " in 0 % of windows",
          " in x of windows", " in 100% of  windows", " in 1.01 of windows")  # fmt: skip
SCOPES = ("", "", "", "end-to-end: ", "operator join-0: ", "operator  a  b : ", "operator : ", "each: ",
          "END-TO-END:", "operator a:b: ")  # fmt: skip


def test_drawn_objectives_are_read_as_recorded(recorded: Recorded) -> None:
    dice, lines = random.Random(71), []
    for _ in range(260):
        text = (
            f"{dice.choice(SCOPES)}{dice.choice(STATISTICS[:7] * 3 + STATISTICS)} "
            f"{dice.choice(SIGNS[:4] * 3 + SIGNS)} {dice.choice(BOUNDS[:7] * 2 + BOUNDS)}"
            f"{dice.choice(WINDOWS[1:2] * 4 + WINDOWS)}{dice.choice(SHARES)}"
        )
        try:
            slo = parse_slo(text)
        except HeadgateError as error:
            lines.append(f"{text!r}: {error}")
            continue
        assert parse_slo(str(slo)) == slo
        lines.append(f"{text!r}: {slo} {[slo.bound, slo.alert_s, slo.scope, slo.operator]}")
    recorded("objectives", lines)


def test_numbers_and_depths_are_bounded_as_a_recursive_reader_would() -> None:
    def good(value: Any, depth: int = 1) -> bool:
        if isinstance(value, dict | list | tuple):
            parts = list(value.values() if isinstance(value, dict) else value)
            return not parts or (depth < 64 and all(good(part, depth + 1) for part in parts))
        if isinstance(value, int):
            return abs(value) <= 2**63 - 1
        return not isinstance(value, float) or abs(value) <= 1e18

    dice = random.Random(72)
    ends = [0, 1.5, True, None, "x", 2**63 - 1, 2**63, -(2**63) + 1, -(2**63), 1e18, 1.1e18, -1e18,
            float("nan"), float("inf"), {}, [], ()]  # fmt: skip
    seen = set()
    for _ in range(300):
        value = dice.choice(ends[:5] * 3 + ends)
        for _ in range(dice.choice([0, 1, 3, 62, 63, 64, 65])):
            other = dice.choice(ends[:5])
            value = dice.choice([[value], {"a": other, "b": value}, (other, value)])
        try:
            found = bounded(value, "it") is value
        except HeadgateError:
            found = False
        assert found is good(value)
        seen.add(found)
    assert seen == {True, False}


def test_shares_of_drawn_assignments_are_as_recorded(recorded: Recorded) -> None:
    """Splits that go along while slots come and go."""
    dice, lines = random.Random(73), []
    for number in range(40):
        slots = dice.randint(2, 5)
        owners = tuple(dice.randrange(slots) for _ in range(6))
        split = {}
        for group in dice.sample(range(6), dice.randint(0, 3)):
            others = [s for s in range(slots) if s != owners[group]]
            split[group] = (owners[group], *dice.sample(others, dice.randint(1, len(others))))
        made = Assignment(owners, slots, number, split)
        shares = [
            (s, made.groups_of(s), made.shares_at(s), made.waiting_at(s)) for s in range(slots)
        ]
        lines.append(f"{number} {owners} {split}: {shares}")
        assert sorted(key for s in range(slots) for key in made.waiting_at(s)) == sorted(
            made.share_key(g, n) for g in range(6) for n in range(len(made.shares_of(g)))
        )
        for fewer in (1, dice.randint(1, 6)):
            after = rescale(made, fewer)
            lines.append(f"  {fewer}: {after.slot_of} {after.epoch} {dict(after.split)}")
        moved = made.remap({dice.randrange(6): dice.randrange(slots) for _ in range(2)})
        lines.append(f"  {moved.slot_of} {moved.epoch} {dict(moved.split)} {made.moved(moved)}")
        assert kept_split(split, owners, slots) == split
    recorded("splits", lines)


def test_shapes_of_a_users_own_are_checked_as_recorded(recorded: Recorded) -> None:
    """Functions that jump, rise or leave their range near the threshold and far from it."""
    lines: list[str] = []
    functions: dict[str, Callable[[float], Any]] = {
        "all": lambda v: 1.0, "text": str, "none": lambda v: None, "below": lambda v: 1.0 - 1e-9,
        **{f"jumps at {at}": lambda v, at=at: 1.0 if v <= at else 0.0
           for at in (0.0, 0.001, 0.5, 1.0, 999.0, 1000.0, 1001.0)},
        **{f"above at {at}": lambda v, at=at: 1.0 + (v > at) for at in (0.5, 999.0, 1001.0)},
        **{f"rises at {at}": lambda v, at=at: 1.0 if v <= 1.0 else 0.2 + 0.1 * (v > at)
           for at in (0.9, 1.0, 1.01, 900.0, 1001.0)},
    }  # fmt: skip
    for metric in Metric:
        for name, function in functions.items():
            made = told(lambda m=metric, f=function: Intent(m, 1.0, Custom(f)).threshold)
            lines.append(f"{metric} {name}: {made}")
    for points in (((1.0, 1.0), (2.0, 0.0)), ((0.5, 1.0),), ((1.0, 0.5), (1.0, 1.0), (3.0, 0.25))):
        shape = Piecewise(points)
        values = [shape.share(v, 1.0, falls=True) for v in (0.0, 0.5, 1.0, 1.25, 2.0, 2.5, 4.0)]
        made = told(lambda s=shape: Intent(Metric.LATENCY, 1.0, s).threshold)
        lines.append(f"{points}: {values} {made}")
    both = utility_of([parse_slo("p95 < 1 s over 1 s"), parse_slo("juice >= 0.5")], 8.0, Step(0.25))
    for values in ((1.0, 0.5), (1.1, 0.5), (1.0, 0.4), (2.0, 0.1)):
        lines.append(f"{values}: {both.met(values)} {both.current(values)}")
    recorded("own-shapes", lines)


# --- Stores ---------------------------------------------------------------------------------------------


def test_settings_of_stores_are_checked_as_recorded(
    monkeypatch: pytest.MonkeyPatch, recorded: Recorded
) -> None:
    lines: list[str] = []
    urls = ("s3://b/k", "s3a://b/k", "gs://b/k", "abfss://c@a/k", "abfs://c@a/k", "hdfs://n/k")
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_")):
            monkeypatch.delenv(name)
    for url in urls:
        kind = stores.kind_of(url)
        lines.append(f"{url}: {kind} {stores.OPTIONS[kind]}")
        for other in ("configDir", "timeout", "region", "token", "baseUrl"):
            given = {f"headgate.store.{other}": "v", "headgate.slots": "2"}
            lines.append(f"  {other}: {told(lambda u=url, g=given: stores.options_for(u, g))}")
        for name in stores.OPTIONS[kind][-3:]:
            for text in ("fine\t", "a\nb", "\x7f", "", "\x00"):
                refused = told(lambda u=url, n=name, t=text: stores.refuse_unsendable(u, {n: t}))
                lines.append(f"  {name}={text!r}: {refused}")
        for variable in ("AWS_ACCESS_KEY_ID", "AWS_REGION", "GOOGLE_SERVICE_ACCOUNT",
                         "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_TENANT_ID", "AWS_S_THREE"):  # fmt: skip
            with monkeypatch.context() as patch:
                patch.setenv(variable, "a\r")
                lines.append(f"  {variable}: {told(lambda u=url: stores.refuse_unsendable(u, {}))}")
    lines += [
        f"{key}: {stores.is_store_option(key)} {told(lambda k=key: stores.store_option(k, 'secret'))}"
        for key in ("headgate.store.region", "HEADGATE.STORE.ACCESSKEYID", "headgate.store.regoin",
                    "headgate.store.", "headgate.slots", "headgate.storeregion")
    ]  # fmt: skip
    for place in ("s3://u:p@b/k", "s3:/b/k?sig=x", "gs://b/k&token=1", "s3://b/k?X-Amz-Date=1",
                  "s3://b/k?x=1",
                  "abfss://c@a.net/k", "hdfs://u@n:8020/d", "hdfs://n", "s3://b/../k", "s3://b//k/",
                  "s3:b/k",
                  Path("s3://b/k"), Path("hdfs://n/k"), "s3", "x://b/k", "//u:p@b/k"):  # fmt: skip
        lines.append(f"{place!r}: {told(lambda p=place: stores.store_url(p))}")
    lines.append(told(lambda: stores.options_for(None, {"headgate.store.region": "x"})))
    lines.append(told(lambda: stores.options_for(None, {"headgate.slots": "x"})))
    recorded("store-settings", lines)


# --- Files ----------------------------------------------------------------------------------------------


def test_files_of_others_are_opened_or_not_as_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: Recorded
) -> None:
    monkeypatch.chdir(tmp_path)
    lines: list[str] = []
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "empty").touch()
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "nowhere").symlink_to("none")
    (tmp_path / "round").symlink_to("round")
    (tmp_path / "to a directory").symlink_to("directory")
    before = len(os.listdir("/proc/self/fd"))
    names = (
        "file",
        "empty",
        "directory",
        "fifo",
        "link",
        "nowhere",
        "round",
        "none",
        "to a directory",
    )
    for name in (*names, "file/x", "x" * 256, "a\0b"):
        path = Path(name)
        for follow in (True, False):
            for most in (4, 5):
                read = told(lambda p=path, m=most, f=follow: read_file(p, "it", m, follow=f))
                lines.append(f"{name[:20]!r} {follow} {most}: {read[:150]}")
        if name in names:
            for flags in (os.O_RDWR, os.O_RDONLY):
                try:
                    os.close(open_regular(path, flags))
                    said = "opened"
                except OSError as error:
                    said = f"{errno.errorcode[error.errno or 0]} {error.strerror}"
                lines.append(f"  {flags}: {said}, locked {is_locked(path)}")
    assert len(os.listdir("/proc/self/fd")) == before
    held = os.open(tmp_path / "file", os.O_RDWR)
    if (child := os.fork()) == 0:  # pragma: no cover -- ends itself
        fcntl.lockf(held, fcntl.LOCK_EX)
        os.write(held, b"locked")
        time.sleep(60)
        os._exit(0)
    while (tmp_path / "file").read_bytes() != b"locked":
        pass
    assert is_locked(tmp_path / "file") is True
    os.kill(child, 9)
    os.waitpid(child, 0)
    assert is_locked(tmp_path / "file") is False
    os.close(held)
    made = open_regular(tmp_path / "made", os.O_CREAT | os.O_WRONLY)
    assert os.fstat(made).st_mode & 0o777 == 0o600
    assert os.get_blocking(made) is False
    assert os.get_inheritable(made) is False
    os.close(made)
    recorded("files", lines)


# --- Streams, addresses, plugins ------------------------------------------------------------------------

STDERR = (
    "WARNING: Using incubator modules: jdk.incubator.vector", "Using Spark's default log4j profile: x",
    "Setting default log level to \"WARN\".", "To adjust logging level use sc.setLogLevel(newLevel).",
    "26/01/01 10:00:00 WARN Utils: Your hostname resolves to a loopback address",
    "26/01/01 10:00:00 WARN Utils: Set SPARK_LOCAL_IP if you need to bind to another address",
    "26/01/01 10:00:00 WARN NativeCodeLoader: Unable to load", "26/01/01 WARN Utils: Something else",
    "Traceback (most recent call last):", "  File \"/x/pyspark/daemon.py\", line 1, in manager",
    "  File \"/x/jobs.py\", line 1, in f", "    worker()", "BrokenPipeError: [Errno 32] Broken pipe",
    "ValueError: no", "thread 'main' (5) panicked at src/lib.rs:1:", "called `Result::unwrap()` on x",
    "note: run with `RUST_BACKTRACE=1`", "stack backtrace:", "   0: std::panicking", "   at ./x.rs",
    "a line", "", " indented", "\u00e9", "WARNING: Something", "x Setting default log level to",
)  # fmt: skip


def test_lines_that_pass_to_stderr_are_as_recorded(recorded: Recorded) -> None:
    dice, lines = random.Random(74), []
    for _ in range(60):
        passed: list[bytes] = []
        noise = quiet.NoiseFilter(passed.append)
        come = [dice.choice(STDERR[8:20] * 2 + STDERR) for _ in range(dice.randint(1, 7))]
        numbers = []
        for line in come:
            noise.line(line.encode() + dice.choice([b"\n", b"\xff\n"]))
            numbers.append(len(passed))
        noise.flush()
        noise.flush()
        lines += [f"{line!r} {count}" for line, count in zip(come, numbers, strict=True)]
        lines.append(f"    = {[raw.decode('utf-8', 'replace').strip() for raw in passed]}")
    recorded("stderr", lines)


@pytest.mark.parametrize("patience_s", [0.0, 0.5, 4.0])
def test_addresses_are_tried_as_long_as_recorded(
    patience_s: float, monkeypatch: pytest.MonkeyPatch, recorded: Recorded
) -> None:
    dice, lines, now = random.Random(75), [], [0.0]
    failures = (
        ConnectionRefusedError("refused"), TimeoutError("slow"), OverflowError("port"),
        socket.gaierror(socket.EAI_AGAIN, "again"), socket.gaierror(socket.EAI_NONAME, "no name"),
        OSError("x"), UnicodeError("name"),
    )  # fmt: skip
    clock = types.SimpleNamespace(
        monotonic=lambda: now[0], sleep=lambda s: now.__setitem__(0, now[0] + s)
    )
    monkeypatch.setattr(listening, "time", clock)
    for number in range(40):
        kinds = [dice.choice(failures) for _ in range(dice.randint(1, 3))]
        opens_s, calls = dice.choice([99.0, 99.0, 0.0, 0.25, 0.95, 2.0]), [0, 0]

        def connect(address: tuple[str, int], limit_s: float) -> Any:
            calls[0] += 1  # noqa: B023
            now[0] += limit_s / 30
            if now[0] >= opens_s and address[1] == 0:  # noqa: B023
                return types.SimpleNamespace(close=lambda: calls.__setitem__(1, 1))  # noqa: B023
            raise kinds[address[1]]  # noqa: B023

        monkeypatch.setattr(listening.socket, "create_connection", connect)
        now[0] = 0.0
        found = listening.not_listening([("host", n) for n in range(len(kinds))], patience_s)
        lines.append(f"{number} {kinds} open at {opens_s}: {found!r} after {now[0]:.6g} s, {calls}")
    recorded(f"addresses-{patience_s:g}", lines)


class Entry:
    """An entry point of a distribution."""

    def __init__(self, name: str, what: Any, dist: str | None = "mine") -> None:
        self.name, self.value, self._what = name, f"{name}:it", what
        self.dist = None if dist is None else types.SimpleNamespace(name=dist, version="1.0")

    def load(self) -> Any:
        if isinstance(self._what, BaseException):
            raise self._what
        return self._what


def test_plugins_are_loaded_or_blamed_as_recorded(
    monkeypatch: pytest.MonkeyPatch, recorded: Recorded
) -> None:
    entries = [
        Entry("zeta", dict), Entry("alpha", 5), Entry("both", dict), Entry("both", dict, "other"),
        Entry("gone", ImportError("no module x")), Entry("ends", SystemExit(3)), Entry("own", dict, None),
        Entry("long", ValueError("y" * 400)), Entry("ours", errors.NotReady("too early.")),
        Entry("text", "x" * 100), Entry("other", 5, "another"),
    ]  # fmt: skip
    monkeypatch.setattr(installed, "entry_points", lambda group: entries)
    lines: list[str] = []
    groups = (installed.POLICIES, installed.WORKLOADS, installed.SOURCES, installed.FLEET_POLICIES)
    for group in groups:
        found = installed.installed(group)
        lines.append(f"{group}: {[str(plugin) for plugin in found.values()]}")
    for name, plugin in installed.installed(installed.WORKLOADS).items():
        lines.append(
            f"{name}: {told(plugin.load)} or {told(lambda p=plugin: p.load(int, 'number'))}"
        )

        def fails(plugin: Any = plugin) -> None:
            with plugin.blamed("made"):
                raise KeyError("a")

        lines.append(f"  {told(fails)}")
    recorded("plugins", lines)


# --- Frames ---------------------------------------------------------------------------------------------

HEADGATE = str(Path(frames.__file__).parents[1])
FILES = (
    f"{HEADGATE}/core/x.py", "/opt/lib/python3.11/site-packages/headgate/a.py", "/srv/me/jobs.py",
    "/srv/me/headgate/own.py", f"{frames._STANDARD}json/x.py", "/spark/python/pyspark/sql/x.py",
    "<stdin>", "/spark/python/lib/py4j-0.10.9-src.zip/py4j/x.py", "<frozen runpy>", "pyspark/x.py",
    "/spark/python/lib/pyspark.zip/pyspark/x.py", "/opt/lib/python3.11/site-packages/pandas/x.py",
    "/usr/lib/python3/dist-packages/six.py", "/srv/me/pyspark_jobs.py", "jobs.py",
    "<ipython-input-3>", "/opt/lib/python3.9/x.py",
)  # fmt: skip


def raised_in(files: list[str]) -> types.TracebackType | None:
    """Return a traceback of functions that call each other, each of a file."""
    call: Callable[[], Any] = lambda: 1 // 0  # noqa: E731
    for number, file in enumerate(reversed(files)):
        space: dict[str, Any] = {"inner": call}
        code = compile("\n" * number + "def outer(): inner()", file, "exec")
        exec(code, space)
        call = space["outer"]
    try:
        call()
    except ZeroDivisionError:
        trace = sys.exc_info()[2]
        return trace and trace.tb_next
    return None


def test_whose_frames_they_are_is_told_as_recorded(recorded: Recorded) -> None:
    dice, lines = random.Random(76), []
    lines += [f"{f.replace(HEADGATE, '<>').replace(frames._STANDARD, '<std>')}: {frames.is_headgates(f)} "
              f"{frames.users_place([(f, 3, 'g')])!r}" for f in FILES]  # fmt: skip
    for number in range(80):
        files = [dice.choice(FILES) for _ in range(dice.randint(1, 5))]
        trace = raised_in(files)
        found = frames.frames_of(trace)[:-1]
        assert [file for file, _, _ in found] == files
        part = frames.users_part(trace)
        begins = "none" if part is None else Path(part.tb_frame.f_code.co_filename).name
        text = "".join(f'  File "{file}", line {line}, in {name}\n' for file, line, name in found)
        assert frames.frames_in(f"Traceback:\n{text}E: x\n") == found
        names = [FILES.index(file) for file in files]
        lines.append(f"{number} {names}: {frames.users_place(found)!r}, begins in {begins}")
    recorded("frames", lines)


def test_a_function_begins_where_it_was_written() -> None:
    class Called:
        def __call__(self) -> None:
            """Do nothing."""

    def plain() -> None:
        """Do nothing."""

    @functools.wraps(plain)
    def wrapped() -> None:
        """Do nothing."""

    line = plain.__code__.co_firstlineno
    here = f"in {Path(__file__).name} line"
    for function in (plain, functools.partial(functools.partial(plain)), wrapped):
        assert frames.place_of(function) == f"{here} {line}"
    assert frames.place_of(Called()) == f"{here} {Called.__call__.__code__.co_firstlineno}"
    assert [frames.place_of(other) for other in (len, 5, dict, None)] == ["", "", "", ""]


def test_a_warning_names_the_users_line() -> None:
    space: dict[str, Any] = {"level": frames.users_level}
    exec(compile("def inner(): return level()", f"{HEADGATE}/core/x.py", "exec"), space)
    exec(compile("def outer(): return inner()", f"{frames._STANDARD}x.py", "exec"), space)
    assert [frames.users_level(), space["inner"](), space["outer"]()] == [1, 2, 3]


# --- Errors ---------------------------------------------------------------------------------------------


def test_slips_and_panics_are_told() -> None:
    given = ["Path", "startingOffset", "x"]
    said = [errors.instead_of(n, given) for n in ("pth", "startingOffsets", "PATH", "other", "")]
    assert said == [
        ' instead of "Path"',
        ' instead of "startingOffset"',
        ' instead of "Path"',
        "",
        "",
    ]
    assert errors.nearest("", ["a"]) == ""

    class PanicException(BaseException):
        """As a library written in Rust raises it."""

    with pytest.raises(EngineError) as raised, errors.without_panics():
        raise PanicException("x" * 299 + "yz\nmore")
    text = str(raised.value)
    assert (
        text
        == f"a native library panicked: {'x' * 299}y; report it to the library that was called."
    )
    assert raised.value.transient is False
    assert EngineError("a", transient=True).transient is True
    assert [errors.ProcessorError("a").transient, errors.EngineGone("a").transient] == [
        False,
        False,
    ]
    with pytest.raises(KeyboardInterrupt), errors.without_panics():
        raise KeyboardInterrupt
    assert [errors.panicked(PanicException()), errors.panicked(ValueError())] == [True, False]


def test_a_moment_is_told_to_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    assert at_text(1_700_000_000.9) == "2023-11-14 22:13:20"
    monkeypatch.undo()
    time.tzset()
