"""Checks the Python interpreter of a session's workers before they are started."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache

from pyspark.sql import SparkSession

from headgate.core.errors import ConfigError
from headgate.spark.jvm.sessions import ships_modules

_ASK = (
    "import sys, importlib.util as u; print(*sys.version_info[:2], u.find_spec('headgate') is None)"
)
_WAIT_S = 60.0


def check_interpreter(spark: SparkSession) -> None:
    """Refuse a local session whose Python workers could not run headgate.

    The usual reason is an environment that is not activated: workers are then ``python3`` of the
    PATH, and each dies with a traceback. `headgate.doctor` checks executors on other hosts. Raises
    `ConfigError`: that Python cannot be run, has no headgate, or is of another minor version.
    """
    context = spark.sparkContext
    named = context.pythonExec
    relative = os.sep in named and not os.path.isabs(named)
    if not str(context.master).startswith("local") or relative:
        return  # another host's Python, or one that executors unpack from an archive
    program = shutil.which(named)
    if program == sys.executable:
        return
    shipped = ships_modules(spark)
    environment = tuple(sorted(context.environment.items()))
    problem = "cannot be run" if program is None else _problem(program, environment, shipped)
    if problem:
        msg = (
            f"Python workers of this session would be {program or named}, which {problem}; set "
            f"PYSPARK_PYTHON={sys.executable} before the session is made, or make it with hg.session()."
        )
        raise ConfigError(msg)


@cache
def _problem(python: str, environment: tuple[tuple[str, str], ...], shipped: bool) -> str:
    """Return why `python` cannot be a worker, as the rest of a sentence; empty if it can.

    `environment` (tuple of pairs): variables that Spark adds to its workers' environment. `shipped`:
    whether Spark ships the user's modules to workers, perhaps with headgate among them.
    """
    try:
        words = subprocess.run(
            [python, "-c", _ASK],
            capture_output=True,
            text=True,
            timeout=_WAIT_S,
            check=False,
            env=os.environ | dict(environment),
        ).stdout.split()
    except subprocess.TimeoutExpired:
        return ""  # a busy machine says nothing about the Python
    except OSError:
        return "cannot be run"
    try:
        major, minor, lacks_headgate = words
    except ValueError:
        return "cannot be run"
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if f"{major}.{minor}" != here:
        return f"is Python {major}.{minor} where this is {here}"
    return "has no headgate" if lacks_headgate == "True" and not shipped else ""
