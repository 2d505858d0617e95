"""One Spark session for all tests that need one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent

# Makes helpers of these tests importable; --import-mode=importlib adds no folder.
sys.path.insert(0, str(HERE))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("spark")
            # Warnings of Spark, py4j and the JVM bridge are not ours to fix. Put first, so that a
            # test's own filterwarnings mark still wins.
            item.add_marker(pytest.mark.filterwarnings("default"), append=False)


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A session with two cores, made as headgate makes it."""
    # Workers must be this very Python, whatever the shell that started pytest says.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # Late: the session's settings are read from the environment above.
    from headgate.spark.cluster.session import session as open_session

    made = open_session(master="local[2]", name="tests")
    made.sparkContext.setLogLevel("ERROR")
    yield made
    made.stop()
