"""Settings of every test, the product's and the laboratory's: hypothesis, kernels, one Spark session.

``pytest --jit=0`` runs the kernels as plain Python, as ``HEADGATE_JIT=0`` does: far slower, but a
failure then shows the line. Without the option the environment decides; the default is to compile.

``pytest --thorough`` also runs tests marked `thorough`: further cases of what one case shows already.

Every test in a folder ``spark`` is marked `spark`, and may ask for the session of that name.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

# JIT compilation and a busy machine make the first example slow; a deadline would only flake.
# Few examples, so that all unit tests take about a minute; `make laws` takes thousands.
settings.register_profile("dev", deadline=None, max_examples=40)
settings.register_profile("ci", deadline=None, max_examples=40, derandomize=True, print_blob=True)
settings.register_profile(
    "laws", deadline=None, max_examples=2000, suppress_health_check=[HealthCheck.too_slow]
)
# A mutant's failure is enough; nobody reads the smallest example of it.
settings.register_profile(
    "mutants", settings.get_profile("ci"), phases=(Phase.explicit, Phase.generate)
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))


CLASSES = Path(sys.prefix) / "classes.jsa"
"""Archive of Spark's classes, which `scripts/class_archive.py` makes."""

LONGEST = {
    "test_answers.py",
    "test_cluster.py",
    "test_executors.py",
    "test_faults.py",
    "test_first_job.py",
    "test_fleet_kill.py",
    "test_henge.py",
    "test_migration.py",
    "test_nexmark_answers.py",
    "test_old_checkpoints.py",
    "test_plain_session.py",
    "test_processor.py",
    "test_real_time.py",
    "test_real_time_grammar.py",
    "test_real_time_hosts.py",
    "test_real_time_kills.py",
    "test_refusals.py",
    "test_split_groups.py",
    "test_written.py",
}
"""Names of files that take longest, on Spark or not."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--jit", choices=["0", "1"], help="compile kernels (1) or not (0)")
    parser.addoption("--thorough", action="store_true", help="run all cases, not one of each kind")
    parser.addoption("--record", action="store_true", help="write recordings anew; read the diff")


def forget_old_kernels(root: Path) -> None:
    """Remove compiled kernels where a kernel's source is newer.

    numba looks at the file of a function alone, and would take old code of those that this one calls.
    """
    files = [path for top in ("src", "lab/src", "demo/src") for path in (root / top).rglob("*.*")]
    compiled = [path for path in files if path.suffix in (".nbi", ".nbc")]
    kernels = [path for path in files if path.suffix == ".py" and "@jit" in path.read_text("utf-8")]
    newest_ns = max((path.stat().st_mtime_ns for path in kernels), default=0)
    if any(path.stat().st_mtime_ns < newest_ns for path in compiled):
        for path in compiled:
            path.unlink(missing_ok=True)


def pytest_configure(config: pytest.Config) -> None:
    # Kernels read this when they are defined, so it must stand before any of them is imported.
    chosen = config.getoption("--jit")
    if chosen is not None:
        os.environ["HEADGATE_JIT"] = chosen
    if not hasattr(config, "workerinput"):  # before xdist's workers load them
        forget_old_kernels(config.rootpath)
    # A JVM of a test lives for minutes: the second compiler costs more than it gains (70 s of processor
    # time instead of 100 for ten tests). JAVA_TOOL_OPTIONS would have each JVM write a line to stderr.
    quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", quick)
    if CLASSES.exists():
        # where it is of another class path, Java goes without it; and says so, were it not told not to
        quick += f" -XX:SharedArchiveFile={CLASSES} -Xlog:cds=off -Xlog:cds+dynamic=off"
    executors = f'"-Dspark.executor.defaultJavaOptions={quick}"'
    os.environ.setdefault("SPARK_SUBMIT_OPTS", f"{quick} {executors}")
    os.environ.setdefault("SPARK_DAEMON_JAVA_OPTS", quick)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--thorough"):
        further = [item for item in items if item.get_closest_marker("thorough")]
        config.hook.pytest_deselected(items=further)
        items[:] = [item for item in items if item not in further]
    # Files that take a minute or more go first, so that no core waits for another's last file.
    items.sort(key=lambda item: item.path.name not in LONGEST)
    for item in items:
        if item.path.parent.name == "spark":
            item.add_marker("spark")
        if item.get_closest_marker("spark") or item.get_closest_marker("slow"):
            # Warnings of Spark, py4j and the JVM bridge are not ours to fix, and a socket of a process
            # that one test has killed is closed in another test. Put first, so that a test's own
            # filterwarnings mark still wins.
            item.add_marker(pytest.mark.filterwarnings("default"), append=False)
    if os.environ.get("HEADGATE_JIT") != "0":
        return
    skip = pytest.mark.skip(reason="tests compiled kernels, and HEADGATE_JIT=0")
    for item in items:
        if item.get_closest_marker("jit"):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A session with two cores, made as headgate makes it."""
    # Workers must be this very Python, whatever the shell that started pytest says.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # Late: the session's settings are read from the environment above.
    from headgate.spark.cluster.session import session as open_session
    from headgate.spark.cluster.sources import register_installed

    made = open_session(master="local[2]", name="tests")
    register_installed(made)
    made.sparkContext.setLogLevel("ERROR")
    yield made
    made.stop()


@pytest.fixture
def recorded(request: pytest.FixtureRequest) -> Callable[[str, Iterable[str]], None]:
    """Compares lines with those of a file in the directory ``recorded`` beside the test.

    A recording notices that an answer changed; whether the change is right is for a reader of the diff.
    """

    def compare(name: str, lines: Iterable[str]) -> None:
        path, new = request.path.parent / "recorded" / f"{name}.txt", list(lines)
        if request.config.getoption("--record"):
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(f"{line}\n" for line in new), encoding="utf-8")
        old = path.read_text(encoding="utf-8").splitlines()
        for number, (was, now) in enumerate(itertools.zip_longest(old, new), 1):
            assert now == was, f"{path.name}:{number}; run pytest --record if that is meant"

    return compare


@pytest.fixture(scope="session")
def one_process() -> Iterator[None]:
    """Simulate in this process: new ones take longer to start than small runs take."""
    from headgate.whatif import parallel

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel.os, "cpu_count", lambda: 1)
        yield
