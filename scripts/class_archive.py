"""Make an archive of Spark's classes, with which a JVM of a test starts in half the processor time.

Java calls it class data sharing: what was loaded and checked once is mapped into each later JVM of the
same class path (11.5 to 6 s of processor time from a session's start to its first streaming query).
Nothing to do where the archive of this Spark and this Java is there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark

ARCHIVE = Path(sys.prefix) / "classes.jsa"
KEY = ARCHIVE.with_suffix(".key")


def main() -> int:
    """Make it; return 0, also where Java cannot: then tests start as slowly as without."""
    java = Path(os.environ["JAVA_HOME"]).resolve()
    key = f"{pyspark.__version__} {pyspark.__path__[0]} {java} {(java / 'release').read_text()}"
    if ARCHIVE.exists() and KEY.exists() and KEY.read_text() == key:
        return 0
    ARCHIVE.unlink(missing_ok=True)
    print("Making an archive of Spark's classes for tests (once; about a minute).", file=sys.stderr)
    made = ARCHIVE.with_suffix(".new")
    environment = os.environ | {
        "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
        f"-XX:ArchiveClassesAtExit={made}"
    }
    submit = Path(pyspark.__path__[0]) / "bin" / "spark-submit"
    warm = Path(__file__).with_name("class_archive_job.py")
    done = subprocess.run(
        [str(submit), "--master", "local[2]", str(warm)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode or not made.exists():
        print(f"There is none, so tests take longer:\n{done.stdout[-2000:]}", file=sys.stderr)
        return 0
    made.rename(ARCHIVE)
    KEY.write_text(key)
    return 0


if __name__ == "__main__":
    sys.exit(main())
