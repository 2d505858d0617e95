"""Fetches jars by their Maven coordinates with Spark's Ivy, and caches them."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyspark

from headgate.core.errors import HeadgateError

_ROOT = Path("~/.ivy2/headgate")
"""Directory of the cache, next to Ivy's own; missing jars are fetched again."""

_LONGEST_S = 280
_COMPLETE = "complete"

_NOTHING = "org.apache.hadoop.util.VersionInfo"
"""A main class in Spark's own jars that prints a line and exits."""


def jars(coordinates: Sequence[str], without: Sequence[str] = ()) -> list[Path]:
    """Return the jars of Maven coordinates and of their dependencies; the first call fetches them.

    Parameters
    ----------
    coordinates : sequence of str
        As ``group:artifact:version``.
    without : sequence of str
        Dependencies that are not fetched since Spark's own jars have them, as ``group:artifact``.

    Raises
    ------
    HeadgateError
        The jars cannot be fetched.
    """
    wanted = "\n".join([*coordinates, *(f"without {one}" for one in without)])
    place = _ROOT.expanduser() / "_".join(re.sub(r"[^\w.-]", "-", one) for one in coordinates[:2])
    place.mkdir(parents=True, exist_ok=True)
    complete = place / _COMPLETE
    with _alone(place):
        if not complete.is_file() or complete.read_text() != wanted:
            _fetch(place, coordinates, without)
            complete.write_text(wanted)
    return sorted((place / "jars").glob("*.jar"))


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Hold a lock that keeps other processes from fetching the same jars."""
    with open(place / "lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _fetch(place: Path, coordinates: Sequence[str], without: Sequence[str]) -> None:
    home = Path(str(pyspark.__file__)).parent
    command = [str(home / "bin" / "spark-submit"), "--master", "local"]
    command += ["--conf", f"spark.jars.ivy={place}", "--packages", ",".join(coordinates)]
    if without:
        command += ["--exclude-packages", ",".join(without)]
    what = ", ".join(coordinates)
    try:
        ran = subprocess.run(
            [*command, "--class", _NOTHING, "spark-internal"],
            env=os.environ | {"SPARK_HOME": str(home)},
            capture_output=True,
            text=True,
            timeout=_LONGEST_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        msg = f"{what} could not be fetched within {_LONGEST_S} s; try again with a better connection."
        raise HeadgateError(msg) from error
    if ran.returncode:
        said = (ran.stdout + ran.stderr).splitlines()
        why = [line.strip() for line in said if "not found" in line or "Exception" in line]
        last = (why or said or ["nothing was said"])[-1]
        msg = f"{what} cannot be fetched ({last}); look at the connection to Maven."
        raise HeadgateError(msg)
