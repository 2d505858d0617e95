"""What is compared of Flink's change from a savepoint, and what is said where there is no Flink."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

import numpy as np
import pytest

from headgate.core.errors import EngineError
from headgate_lab.bench import flink, flink_rescale, rescale, wide
from headgate_lab.bench.common import WrongAnswer

KEYS, ROWS, FILES = 2_500, 30, 4


def printed() -> list[str]:
    """Return what a right job prints: samples of the load, then changes in pairs."""
    lines = [f"main:1> +I[{k}, 1, {30 * (k % 1_000) + 435}]" for k in (0, 1_000, 2_000)]
    counts = dict.fromkeys(range(KEYS), 1)
    for index in range(FILES):
        for k in flink_rescale.touched(index, ROWS, KEYS).tolist():
            counts[k] += 1
            once = 30 * (k % 1_000) + 435
            for kind, c in (("-U", counts[k] - 1), ("+U", counts[k])):
                if c > 1 or k % 1_000 == 0:
                    lines.append(f"main:12> {kind}[{k}, {c}, {c * once}]")
    return lines


def compared(lines: list[str]) -> int:
    rows = flink_rescale.last_rows("".join(f"{line}\n" for line in lines))
    return flink_rescale.check(rows, KEYS, ROWS, FILES)


def test_the_last_row_of_every_printed_key_is_compared() -> None:
    touched = {k for i in range(FILES) for k in flink_rescale.touched(i, ROWS, KEYS).tolist()}
    # rows of the job that warms Flink up, and a part of a line, are none of this job's
    others = ["warm:1> +I[7, 9, 9]", "main:1> +U[1, 2"]
    assert compared(printed() + others) == len(touched | {0, 1_000, 2_000})


def test_a_lost_record_and_a_lost_key_are_wrong_answers() -> None:
    lines = printed()
    with pytest.raises(WrongAnswer, match="after the savepoint is wrong on 1 of"):
        compared([line for line in lines if "+U[0, 2, " not in line])
    with pytest.raises(WrongAnswer, match="keys too few or too many, the first is 1000"):
        compared([line for line in lines if "[1000," not in line])


def test_a_job_that_begins_again_is_a_wrong_answer_though_its_counts_are_right() -> None:
    with pytest.raises(WrongAnswer, match="begun again"):
        compared(printed() * 2)


def test_its_aggregate_is_that_of_the_others() -> None:
    assert flink_rescale.SUMS == wide.SUMS
    keys = np.arange(3_000)
    assert np.array_equal(flink_rescale.values_of(keys), wide.values_of(keys))
    assert flink_rescale.query().count("SUM(v + ") == wide.SUMS


def test_files_have_every_key_once_and_then_the_touched_ones(tmp_path: Path) -> None:
    feed = flink_rescale._Feed(tmp_path / "input", KEYS, ROWS)
    feed.load()
    assert loaded(tmp_path, "load-*") == list(range(KEYS))
    with feed.steady():
        while feed.count < 2:
            pass
    written = (flink_rescale.touched(i, ROWS, KEYS).tolist() for i in range(feed.count))
    assert loaded(tmp_path, "touch-*") == sorted(itertools.chain.from_iterable(written))
    assert not list((tmp_path / "input").glob(".*"))


def loaded(directory: Path, names: str) -> list[int]:
    files = (directory / "input").glob(names)
    return sorted(int(line.split(",")[0]) for f in files for line in f.read_text().splitlines())


def test_lines_are_read_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "printed"
    path.write_text("main:1> +I[1, 2, 3]\nsome words\nmain:1> +I[4")
    found = flink_rescale._Printed(path)
    assert found.lines() == ["main:1> +I[1, 2, 3]"]
    assert found.lines() == []
    with path.open("a") as file:
        file.write(", 5, 6]\n")
    assert found.lines() == ["main:1> +I[4, 5, 6]"]


def test_without_flink_it_says_why(monkeypatch) -> None:
    monkeypatch.delenv(flink.VARIABLE, raising=False)
    assert flink.VARIABLE in flink_rescale.measure(1_000_000, 8, 12, 1)["skipped"]


@pytest.fixture
def fake_runs(monkeypatch):
    """Return what to call with the times of Flink's runs, of which None fails."""
    monkeypatch.setattr(flink, "find_flink", lambda: ("python", "2.3.0"))

    def runs(*times: float | None) -> None:
        rest = iter(times)

        def run(python, request):
            if (total_ms := next(rest)) is None:
                raise EngineError("no such luck")
            return {"total_ms": total_ms, "keys_compared": request["keys"], "rows": request["rows"]}

        monkeypatch.setattr(flink_rescale, "_run", run)

    return runs


def test_the_result_has_the_median_and_every_run(fake_runs) -> None:
    fake_runs(900.0, 100.0, 200.0)
    found = flink_rescale.measure(28_000, 8, 12, 3, rate=5_000)
    assert (found["total_ms"], found["keys_compared"], found["rows"]) == (200.0, 100, 500)
    assert [run["total_ms"] for run in found["runs"]] == [900.0, 100.0, 200.0]


def test_a_flink_that_fails_is_told(fake_runs) -> None:
    fake_runs(900.0, None)
    assert flink_rescale.measure(28_000, 8, 12, 2) == {"failed": "no such luck"}


@pytest.mark.parametrize("real_time", [False, True])
def test_rescale_has_flink_beside_it_in_batches_and_in_real_time(monkeypatch, real_time) -> None:
    monkeypatch.setattr(rescale, "_measured", lambda chosen: {"in_host": {}, "across_hosts": {}})
    monkeypatch.setattr(flink_rescale, "measure", lambda *given: {"given": given})
    found = rescale.run(state="1MB", spark=False, repeats=2, rate=50, real_time=real_time)
    assert found["flink"] == {"given": (1_000_000, 8, 12, 2, 50)}
    assert "flink" not in rescale.run(flink=False, spark=False, real_time=real_time)
    assert "flink" not in rescale.run(only="none", spark=False, real_time=real_time)
    assert "flink" not in rescale.run(query="q7", spark=False, real_time=real_time)


def test_flinks_interpreter_needs_nothing_of_headgate() -> None:
    top = ast.parse(Path(flink_rescale.__file__).read_text()).body
    imports = [ast.unparse(line) for line in top if isinstance(line, ast.Import | ast.ImportFrom)]
    assert imports
    assert not any("headgate" in line for line in imports)


@pytest.mark.spark
def test_an_entry_has_the_size_that_the_other_engines_count(spark, tmp_path: Path) -> None:
    assert flink_rescale.ENTRY_BYTES == wide.entry_bytes(spark, tmp_path)


@pytest.mark.slow
def test_flink_itself_goes_on_from_its_savepoint() -> None:
    python, why = flink.find_flink()
    if python is None:
        pytest.skip(why)
    found = flink_rescale.measure(1_000_000, 2, 3, 1, rate=1_000)
    assert found["total_ms"] >= found["savepoint_ms"] > 0
    assert found["keys_compared"] > 1_000_000 // flink_rescale.ENTRY_BYTES // flink_rescale.SAMPLE
