"""Runs servers of third parties for tests, such as moto's S3, and installs them once.

moto is independent of `s3_server`, so behaviour of both is probably that of S3.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

LOCK = Path(__file__).resolve().parents[4] / "requirements" / "servers.lock"
"""Lock file of moto's environment."""

BUCKET = "bucket"

_INSTALL_S = 300.0
_START_S = 60.0
_SERVE = "import sys; from moto.server import main; main(sys.argv[1:])"


class ServerUnavailable(Exception):
    """Reports why a server is not available on this machine."""


@contextmanager
def moto() -> Iterator[str]:
    """Yield the address of an S3 on loopback with an empty bucket named `BUCKET`.

    Raises
    ------
    ServerUnavailable
        The server cannot be installed or started.
    """
    python, port = _environment(), free_port()
    address = f"http://127.0.0.1:{port}"
    command = [str(python), "-c", _SERVE, "-H", "127.0.0.1", "-p", str(port)]
    made = urllib.request.Request(f"{address}/{BUCKET}", method="PUT")
    with running("moto's server", command, lambda: made):
        yield address


def free_port() -> int:
    """Return a free port of loopback."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@contextmanager
def running(
    name: str,
    command: Sequence[str],
    first: Callable[[], urllib.request.Request],
    env: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """Run a server, and yield when it has answered its first request, mostly that for a bucket.

    Parameters
    ----------
    name : str
        Name of the server, for errors.
    first : callable
        Makes the first request; called for each try, since a signature may contain the time.
    env : mapping, optional
        Variables added to this process's environment.

    Raises
    ------
    ServerUnavailable
        The server ends, refuses the request, or does not answer in time.
    """
    process = subprocess.Popen(
        command,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _await(name, process, first)
        yield
    finally:
        process.kill()
        process.wait()


def _await(
    name: str, process: subprocess.Popen[bytes], first: Callable[[], urllib.request.Request]
) -> None:
    until_s = time.monotonic() + _START_S
    while True:
        try:
            with urllib.request.urlopen(first(), timeout=10.0):
                return
        except OSError as error:
            refused = isinstance(error, urllib.error.HTTPError)
            if refused or process.poll() is not None or time.monotonic() > until_s:
                msg = f"{name} does not answer as it should: {error}"
                raise ServerUnavailable(msg) from error
            time.sleep(0.1)


def variables(prefix: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables for a store's library, from the options of a checkpoint."""
    return {
        f"{prefix}_{re.sub('(?=[A-Z])', '_', name).upper()}": text for name, text in options.items()
    }


def cache() -> Path:
    """Return the directory of third-party programs that tests have fetched."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headgate"


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
    place = cache() / f"servers-{name}"
    python = place / "bin" / "python"
    if python.exists():
        return python
    place.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix="servers-", dir=place.parent))
    try:
        install("moto", [sys.executable, "-m", "venv", "--copies", str(made)])
        packages = [
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--require-hashes",
            "-r",
            str(LOCK),
        ]
        install("moto", [str(made / "bin" / "python"), *packages])
        try:
            made.rename(place)  # fails if another process was first
        except OSError:
            if not python.exists():
                raise
    except OSError as error:
        msg = f"no environment for moto's server can be made: {error}"
        raise ServerUnavailable(msg) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return python


def install(name: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
    """Run an installer's command.

    Raises
    ------
    ServerUnavailable
        The command cannot be run, fails, or takes too long.
    """
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            timeout=_INSTALL_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        msg = f"{name} cannot be installed: {error}"
        raise ServerUnavailable(msg) from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        msg = f"{name} cannot be installed: {last}"
        raise ServerUnavailable(msg)
