"""Runs a PostgreSQL server on loopback, if PostgreSQL is installed on the machine."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headgate.core.errors import EngineError

_WHERE = Path("/usr/lib/postgresql")
_USER = "headgate"
_NOBODY = "postgres"
"""User as whom root runs the server, which refuses to run as root."""


@contextmanager
def server() -> Iterator[str]:
    """Start a server and yield its JDBC URL; at the end stop it and delete its data.

    Raises
    ------
    EngineError
        PostgreSQL is not installed, or does not start.
    """
    programs = _programs()
    folder = Path(tempfile.mkdtemp(prefix="headgate-postgres-"))
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, _NOBODY)
        data, port = folder / "data", _free_port()
        initdb = ["initdb", "-D", str(data), "-U", _USER, "-A", "trust", "--no-sync"]
        _run(programs, folder, [*initdb, "-E", "UTF8", "--locale", "C"])
        given = f"-p {port} -c listen_addresses=127.0.0.1 -k {folder} -c fsync=off"
        control = ["pg_ctl", "-D", str(data), "-w"]
        _run(programs, folder, [*control, "-o", given, "-l", str(folder / "log"), "start"])
        try:
            yield f"jdbc:postgresql://127.0.0.1:{port}/postgres?user={_USER}"
        finally:
            _run(programs, folder, [*control, "-m", "immediate", "stop"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(url: str, sql: str) -> list[list[str]]:
    """Run SQL on a server and return its rows, as text."""
    address = url.removeprefix("jdbc:").partition("?")[0]
    command = ["psql", "-X", "-q", "-A", "-t", "-F", "\t", "-U", _USER, "-c", sql, address]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        msg = f"PostgreSQL refused {sql[:60]!r}: {found.stderr.strip()}"
        raise EngineError(msg)
    return [line.split("\t") for line in found.stdout.splitlines()]


def _programs() -> Path:
    """Return the folder of the newest server's programs."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).parent
    versions = sorted(_WHERE.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if not versions:
        msg = "this machine has no PostgreSQL server (no initdb); install one to merge into it."
        raise EngineError(msg)
    return versions[-1].parent


def _run(programs: Path, folder: Path, command: list[str]) -> None:
    name, *rest = command
    made = [str(programs / name), *rest]
    if os.geteuid() == 0 and getpass.getuser() != _NOBODY:
        made = ["runuser", "-u", _NOBODY, "--", *made]
    # output to a file, since the server would keep a pipe open
    with (folder / "said").open("wb") as said:
        ran = subprocess.run(made, cwd=folder, stdout=said, stderr=said, check=False)
    if ran.returncode:
        text = (folder / "said").read_text(errors="replace").strip().splitlines()
        msg = f"{name} of PostgreSQL failed: {text[-1] if text else ran.returncode}"
        raise EngineError(msg)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
