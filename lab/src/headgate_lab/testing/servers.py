"""A real S3 for tests: moto's server, in an environment of its own that is made once from its lock file.

It is another program than `s3_server`, written by others: what both agree on is probably S3's.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = Path(__file__).resolve().parents[4] / "requirements" / "servers.lock"
"""What the environment holds; beside the lock files of the project."""

BUCKET = "bucket"

_INSTALL_S = 300.0
_START_S = 60.0
_SERVE = "import sys; from moto.server import main; main(sys.argv[1:])"


class ServerUnavailable(Exception):
    """The server cannot be had here; says why."""


@contextmanager
def moto() -> Iterator[str]:
    """Yield the address of an S3 on loopback with an empty bucket named `BUCKET`.

    Raises
    ------
    ServerUnavailable
        It cannot be installed or started.
    """
    python = _environment()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    arguments = ["-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(
        [str(python), "-c", _SERVE, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _await_bucket(process, f"{address}/{BUCKET}")
        yield address
    finally:
        process.kill()
        process.wait()


def _await_bucket(process: subprocess.Popen[bytes], url: str) -> None:
    """Make the bucket as soon as the server answers."""
    until_s = time.monotonic() + _START_S
    while True:
        try:
            request = urllib.request.Request(url, method="PUT")
            with urllib.request.urlopen(request, timeout=10.0):
                return
        except OSError as error:
            if process.poll() is not None or time.monotonic() > until_s:
                msg = f"moto's server does not answer: {error}"
                raise ServerUnavailable(msg) from error
            time.sleep(0.1)


def _environment() -> Path:
    """Return the environment's Python; made if it is not there.

    Raises
    ------
    ServerUnavailable
        There is no lock file, or something of it cannot be had.
    """
    if not LOCK.is_file():
        msg = f"{LOCK.name} is not there: only a checkout of the project has it"
        raise ServerUnavailable(msg)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    name = hashlib.sha256(LOCK.read_bytes() + version.encode()).hexdigest()[:16]
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = caches / "headgate" / f"servers-{name}"
    python = place / "bin" / "python"
    if python.exists():
        return python
    place.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix="servers-", dir=place.parent))
    try:
        _run([sys.executable, "-m", "venv", "--copies", str(made)])
        install = [
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--require-hashes",
            "-r",
            str(LOCK),
        ]
        _run([str(made / "bin" / "python"), *install])
        try:
            made.rename(place)  # whoever made it first wins
        except OSError:
            if not python.exists():
                raise
    except OSError as error:
        msg = f"no environment for moto's server can be made: {error}"
        raise ServerUnavailable(msg) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return python


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_INSTALL_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        msg = f"{command[0]} took longer than {_INSTALL_S:g} s"
        raise ServerUnavailable(msg) from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        msg = f"moto cannot be installed: {last}"
        raise ServerUnavailable(msg)
