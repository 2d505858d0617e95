"""The ends of what people may write: texts, numbers, paths, files, JSON, TOML, SLOs."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.core.assignment import Assignment
from headgate.core.duration import LONGEST_S
from headgate.core.errors import ConfigError
from headgate.core.input import (
    BYTES_MAX,
    DEPTH_MAX,
    FLOAT_MAX,
    PORT_MAX,
    RATE_MAX,
    TEXT_MAX,
    WHOLE_MAX,
    bounded,
    checked_path,
    checked_text,
    escaped,
    finite,
    host_and_port,
    is_directory,
    is_file,
    open_file,
    open_regular,
    read_file,
    read_json,
    read_toml,
    shown,
    whole,
)
from headgate.core.quiet import quiet_stderr
from headgate.core.slo import ALERT_S, Slo, parse_slo
from headgate_lab.testing.descriptors import descriptors, held


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as error:
        call()
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("text", ["\x00", "\x1f", "\x7f", "\x9f", "\u202e", "\u2060", "\ufeff"])
def test_what_a_terminal_obeys_is_shown_as_its_number(text: str) -> None:
    assert escaped(f"a{text}b") == f"a{text.encode('unicode_escape').decode()}b"


def test_what_is_next_to_it_is_shown_as_it_is() -> None:
    assert escaped(" ~\u00a0\u2027\u202f\u205f\u206aé") == " ~\u00a0\u2027\u202f\u205f\u206aé"


def test_of_a_long_text_the_middle_is_left_out() -> None:
    assert shown("x" * 300) == "x" * 300
    assert shown("a" * 200 + "b" * 101) == "a" * 200 + " [...] " + "b" * 100
    assert shown("abcdefghij", 9) == "abcdef [...] hij"
    assert shown(5) == "5"


def test_texts_have_a_length() -> None:
    assert checked_text("x" * TEXT_MAX, "it") == "x" * TEXT_MAX
    assert refused(lambda: checked_text("x" * (TEXT_MAX + 1), "it")).endswith(
        "it has 10,001 characters; use 10,000 at most."
    )


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("+7", 7), (" 5 ", 5), (str(WHOLE_MAX), WHOLE_MAX), ("-1", None), ("5.0", None),
     ("", None), (str(WHOLE_MAX + 1), None), ("1" * 31, None), ("5 6", None), ("０", None)],
)  # fmt: skip
def test_whole_numbers(text: str, number: int | None) -> None:
    if number is not None:
        assert whole(text, "slots") == number
        return
    said = refused(lambda: whole(text, "slots"))
    assert said == (f'slots "{text}" is out of range; use a whole number from 0 to {WHOLE_MAX}.')


def test_whole_numbers_within_limits() -> None:
    assert (whole("-5", "n", -5, 5), whole("5", "n", -5, 5)) == (-5, 5)
    assert "from -5 to 5" in refused(lambda: whole("6", "n", -5, 5))
    refused(lambda: whole("-6", "n", -5, 5))


@pytest.mark.parametrize(
    ("text", "found"),
    [("a:1", ("a", 1)), (" [::1]:0 ", ("[::1]", 0)), (f"h:{PORT_MAX}", ("h", PORT_MAX)),
     (f"h:{PORT_MAX + 1}", None), (":1", None), ("h", None), ("h:", None), ("h:123456", None),
     ("h:x", None)],
)  # fmt: skip
def test_addresses(text: str, found: tuple[str, int] | None) -> None:
    if found is not None:
        assert host_and_port(text, "--listen") == found
    else:
        assert "is no address; give host and port" in refused(lambda: host_and_port(text, "it"))


def test_finite_numbers() -> None:
    assert finite(FLOAT_MAX, "x") == FLOAT_MAX
    assert finite(-FLOAT_MAX, "x") == -FLOAT_MAX
    assert (finite(1.0, "x", 1.0, 2.0), finite(2.0, "x", 1.0, 2.0)) == (1.0, 2.0)
    for value in (math.nan, math.inf, -math.inf, FLOAT_MAX * 1.01, -FLOAT_MAX * 1.01):
        assert "is out of range; use a number from " in refused(lambda v=value: finite(v, "x"))
    refused(lambda: finite(2.1, "x", 1.0, 2.0))
    refused(lambda: finite(0.9, "x", 1.0, 2.0))


def test_paths_have_lengths() -> None:
    assert len(checked_path("é" * 127).name) == 127
    refused(lambda: checked_path("é" * 128))
    path = ("x" * 254 + "/") * 16
    assert checked_path(path[:4095])
    assert "is longer than a path can be; name another." in refused(
        lambda: checked_path(path + "y" * 20)
    )


def test_what_is_a_file_and_what_a_directory(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")
    found = {
        p.name: (is_file(p), is_directory(p)) for p in (file, tmp_path / "pipe", tmp_path / "no")
    }
    assert found == {"file": (True, False), "pipe": (False, False), "no": (False, False)}
    assert (is_file(tmp_path), is_directory(tmp_path)) == (False, True)
    assert (is_file(Path("a\0")), is_directory(Path("a\0"))) == (False, False)


def test_only_a_regular_file_is_opened_and_nothing_is_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    before = held(tmp_path)
    for name, why, number in (
        ("pipe", "it is not a regular file", errno.EINVAL),
        ("link", "it is a symbolic link", errno.ELOOP),
        ("none", "No such file", errno.ENOENT),
    ):
        with pytest.raises(OSError, match=why) as error:
            open_regular(tmp_path / name)
        assert error.value.errno == number
        said = refused(lambda n=name: read_file(tmp_path / n, "the log", follow=False))
        assert said.startswith(f'the log "{tmp_path / name}" cannot be read: ')
    assert held(tmp_path) == before
    assert read_file(tmp_path / "link", "the log") == b"abc"
    with open_file(tmp_path / "link", "the log") as file:
        assert file.read() == b"abc"
    made = open_regular(tmp_path / "new", os.O_CREAT | os.O_WRONLY)
    assert os.fstat(made).st_mode & 0o777 == 0o600
    assert os.get_inheritable(made) is False
    os.close(made)


def test_files_that_are_read_whole_have_a_size(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10)
    assert read_file(path, "it", 10) == b"x" * 10
    assert refused(lambda: read_file(path, "it", 9)).endswith(
        "is larger than 9 bytes; name another file."
    )
    assert BYTES_MAX > 300_000, "a fleet of a thousand jobs"


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def test_json_and_toml_are_bounded() -> None:
    assert read_json(b'{"a": [1, 2.5, "x", null, true]}', "it") == {"a": [1, 2.5, "x", None, True]}
    assert read_json(nested(DEPTH_MAX).encode(), "it") == json.loads(nested(DEPTH_MAX))
    for text in (nested(DEPTH_MAX + 1), nested(65)):
        assert "it is nested more than 64 deep" in refused(
            lambda t=text: read_json(t.encode(), "it")
        )
    refused(lambda: read_json(nested(100_000).encode(), "it"))
    for text in (str(WHOLE_MAX), str(-WHOLE_MAX), f"{FLOAT_MAX}", f"{-FLOAT_MAX}"):
        read_json(text.encode(), "it")
    for text in (str(WHOLE_MAX + 1), str(-WHOLE_MAX - 1), "1e300", "-1e300", "1e999"):
        said = refused(lambda t=text: read_json(t.encode(), "it"))
        assert "it holds the number " in said
        assert said.endswith("which is out of range; repair it.")
    for text, why in (
        ("Infinity", "Infinity is not a finite number"),
        ("{", "it is not JSON: "),
        ("9" * 5000, "a number has too many digits"),
        ("\xff", "it is not JSON: "),
    ):
        assert why in refused(lambda t=text: read_json(t.encode("latin-1"), "it"))
    assert read_toml(b"a.b.c = 1", "it") == {"a": {"b": {"c": 1}}}
    assert "it is not TOML: " in refused(lambda: read_toml(b"a =", "it"))
    assert "which is out of range" in refused(lambda: read_toml(b"a = inf", "it"))
    assert "is nested more than" in refused(
        lambda: read_toml(f"a = {nested(DEPTH_MAX)}".encode(), "it")
    )
    names = ".".join(["a"] * DEPTH_MAX)
    assert f"a key of more than {DEPTH_MAX} parts" in refused(
        lambda: read_toml(f"{names}.a = 1".encode(), "it")
    )
    refused(lambda: read_toml(f"[{names}.a]".encode(), "it"))
    assert "a key of more" not in refused(lambda: read_toml(f"{names} = ".encode(), "it"))
    assert bounded((1, {"a": (2,)}), "it") == (1, {"a": (2,)})
    refused(lambda: bounded({"a": (math.nan,)}, "it"))


# --- SLOs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(7200.0, "2 h"), (3600.0, "1 h"), (5400.0, "90 min"), (90.0, "90 s"), (60.0, "1 min"),
     (61.0, "61 s"), (1.5, "1.5 s"), (1.0, "1 s"), (0.8, "800 ms"), (0.0015, "1.5 ms"),
     (0.001, "1 ms"), (0.0005, "500 us"), (1e-6, "1 us"), (90.5, "90.5 s")],
)  # fmt: skip
def test_an_slo_says_durations_in_their_usual_unit(seconds: float, text: str) -> None:
    slo = Slo("mean", seconds, 1.0)
    assert str(slo) == f"mean < {text} over 1 s"
    assert parse_slo(str(slo)) == slo
    window = Slo("mean", 1.0, seconds)
    assert str(window).endswith(f" over {text}")
    assert parse_slo(str(window)) == window


@pytest.mark.parametrize(
    "text",
    ["mean < 1 s over 1 s", "p99 < 1 s over 5 s in 95 % of windows", "juice >= 0.95 over 1 min",
     "throughput >= 500 records/s over 10 s", "operator counts: mean < 1 s over 1 s",
     "end-to-end: mean < 1 s over 1 s", "max < 3 s over 1 s in 99.9 % of windows",
     "mean < 1 s over 1 s in 100 % of windows"],
)  # fmt: skip
def test_an_slos_text_reads_back_as_itself(text: str) -> None:
    slo = parse_slo(text)
    assert str(slo) == text
    assert parse_slo(str(slo)) == slo


def test_an_slos_numbers_have_ends() -> None:
    for name, most in (
        ("mean", LONGEST_S),
        ("p95", LONGEST_S),
        ("juice", 1.0),
        ("throughput", RATE_MAX),
    ):
        assert Slo(name, most, 1.0).bound == most
        for bound in (0.0, -1.0, most * 1.001, math.nan):
            said = refused(lambda n=name, b=bound: Slo(n, b, 1.0))
            assert f"on {name} is out of range; use more than 0 and at most {most:g}." in said
    for window_s in (1e-6, LONGEST_S):
        assert Slo("mean", 1.0, window_s).window_s == window_s
    for window_s in (0.9e-6, LONGEST_S * 1.001, math.nan):
        refused(lambda w=window_s: Slo("mean", 1.0, w))
    assert Slo("mean", 1.0, 1.0, success=1.0).success == 1.0
    assert Slo("mean", 1.0, 1.0, success=1e-9).success == 1e-9
    for success in (0.0, 1.001, math.nan):
        refused(lambda s=success: Slo("mean", 1.0, 1.0, success=s))


def test_an_alert_is_below_its_bound() -> None:
    assert Slo("mean", 10.0, 1.0).alert_s == ALERT_S
    assert Slo("mean", ALERT_S, 1.0).alert_s == ALERT_S / 2
    assert Slo("throughput", 10.0, 1.0).alert_s == 0.0
    assert Slo("mean", 1.0, 1.0, alert_s=0.999).alert_s == 0.999
    assert refused(lambda: Slo("mean", 1.0, 1.0, alert_s=1.0)).startswith(
        "the alert threshold 1 s is not below the bound 1 s"
    )
    refused(lambda: Slo("mean", 1.0, 1.0, alert_s=-0.1))


@pytest.mark.parametrize(
    ("name", "scope", "fits"),
    [("mean", "operator a", True), ("mean", "operator ", False), ("mean", "operator a:b", False),
     ("mean", "operator a  b", False), ("mean", "end-to-end", True), ("mean", "each", False),
     ("juice", "end-to-end", True), ("juice", "operator a", False), ("p95", "operator a", True)],
)  # fmt: skip
def test_a_scope_fits_its_statistic(name: str, scope: str, *, fits: bool) -> None:
    if fits:
        assert Slo(name, 0.5, 1.0, scope).scope == scope
    else:
        assert f"does not fit {name}" in refused(lambda: Slo(name, 0.5, 1.0, scope))


def test_quantiles_and_operators() -> None:
    assert [Slo(n, 1.0, 1.0).quantile for n in ("p50", "p95", "p99", "max")] == [
        0.5,
        0.95,
        0.99,
        1.0,
    ]
    assert Slo("mean", 1.0, 1.0, "operator a").operator == "a"
    assert Slo("mean", 1.0, 1.0).operator is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mean < 10 over 1 s", 'write "mean < 10 ms over 1 s"'),
        ("mean < 9 over 1 s", 'write "mean < 9 s over 1 s"'),
        ("mean < 1 s over 10", 'write "mean < 1 s over 10 s"'),
        ("mean > 1 s over 1 s", 'bounds mean from the wrong side; write "mean < 1 s over 1 s"'),
        ("juice < 0.9", 'bounds juice from the wrong side; write "juice >= 0.9"'),
        ("mean < 1 s", 'has no window; write "mean < 1 s over 10 s"'),
        ("men < 1 s over 1 s", 'unknown statistic "men"; did you mean "mean"'),
        ("throughput >= x", 'write "throughput >= 500 records/s"'),
        ("x" * 5000, "cannot read SLO"),
        ("juice >= x", "has no number at"),
        ("mean < 1 s over 1 s in x % of windows", "SLO"),
    ],
)
def test_an_slo_that_cannot_be_read_is_refused_with_the_remedy(text: str, says: str) -> None:
    assert says in refused(lambda: parse_slo(text))


def test_rates_are_per_second_whatever_they_are_written_per() -> None:
    assert parse_slo("throughput >= 120 records/min over 10 s").bound == 2.0
    assert parse_slo("throughput >= 5 records/s").window_s == parse_slo("juice >= 0.5").window_s
    assert parse_slo("juice > 95 %").bound == 0.95
    assert parse_slo("1s over 2s") == Slo("mean", 1.0, 2.0)


# --- Assignments, and stderr --------------------------------------------------------------------------


def test_an_assignment_has_at_least_a_slot_and_no_more_than_key_groups() -> None:
    assert Assignment((0, 0), 1).slots == 1
    assert Assignment((0, 1), 2).slots == 2
    for slot_of, slots in (((0, 0), 0), ((0, 0), 3), ((), 1)):
        refused(lambda of=slot_of, n=slots: Assignment(of, n))
    for slot_of in ((0, 2), (0, -1)):
        assert "which does not exist; use 0 to 1, or scale(" in refused(
            lambda of=slot_of: Assignment(of, 2)
        )


@pytest.mark.parametrize(
    ("group", "shares", "fits"),
    [(0, (0, 1), True), (1, (1, 0, 2), True), (0, (1, 0), False), (0, (0,), False),
     (0, (0, 0), False), (0, (0, 3), False), (0, (0, -1), False), (3, (0, 1), False),
     (-1, (2, 1), False)],
)  # fmt: skip
def test_a_split_is_over_slots_that_there_are(
    group: int, shares: tuple[int, ...], *, fits: bool
) -> None:
    if not fits:
        assert f"key group {group} cannot be split over slots {list(shares)}" in refused(
            lambda: Assignment((0, 1, 2), 3, 0, {group: shares})
        )
        return
    found = Assignment((0, 1, 2), 3, 0, {group: shares})
    assert found.shares_of(group) == shares
    assert [found.shares_at(slot).get(group) for slot in shares] == [None, 1, 2][: len(shares)]


def test_a_filter_of_stderr_leaves_no_descriptor() -> None:
    before = descriptors()
    for _ in range(3):
        with quiet_stderr(5.0):
            os.write(2, b"a line\n")
    assert descriptors() - before == set()
