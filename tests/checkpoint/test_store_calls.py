"""A store that is made slow takes its time, and every call to it is noted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

CHILD = """
import sys, time
from pathlib import Path
from headgate.checkpoint import store_calls
from headgate.checkpoint.files import names_in, read_bytes, remove, write_bytes

slept = []
store_calls.time.sleep = slept.append
at = Path(sys.argv[1])
write_bytes(at, "one", b"123")
read_bytes(at, "one")
names_in(at)
remove(at, "one")
print(slept)
"""


def test_each_call_is_delayed_and_noted_where_the_environment_asks_for_it(tmp_path: Path) -> None:
    place, trace = tmp_path / "manifests", tmp_path / "trace"
    place.mkdir()
    environment = {"HEADGATE_STORE_DELAY": "50 ms", "HEADGATE_STORE_TRACE": str(trace)}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(place)],
        env={"PYTHONPATH": ":".join(filter(None, sys.path)), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [0.05] * 4
    notes = [json.loads(line) for line in trace.read_text().splitlines()]
    assert [(n["act"], n["kind"], n["bytes"]) for n in notes] == [
        ("write", "manifests", 3),
        ("read", "manifests", 0),
        ("list", "manifests", 0),
        ("remove", "manifests", 0),
    ]
