"""Starts the processes of slots within milliseconds: forks them from a process with all modules loaded.

A Python process needs a core for about 1 s to load a slot's modules and compiled code; serving slots
would lack that core. The fork server loads them once, before the first slot. It runs no user code, since
a fork would lose the threads of such code. Slots end with the fork server, and the fork server ends with
the process that started it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import logging
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np

from headgate.core.jit import announce_compiling
from headgate.operators.build import Spec
from headgate.operators.processor import ProcessorSpec
from headgate.operators.warm import warm
from headgate.spark.realtime import words
from headgate.spark.realtime.channels import hang_up
from headgate.spark.realtime.slot_process import SlotProcess
from headgate.tables import heap

_START, _KILL = "start", "kill"
_LOADED, _SAYS = -1, -2
"""In place of a slot's number: the server can start slots; a line for the user."""
LOST = -1
"""Exit code of a process whose real exit code is unknown."""

_LOG = logging.getLogger("headgate")

_LOADS_S = 600.0
"""Longest wait for a program that loads, in seconds; then the time limit of slots decides. Not tuned."""

_HEEDS_S = 5.0
"""Time limit of the server for ending a slot; then the server is killed with all slots. Not tuned."""


class ForkedProcess:
    """Represents the process of a slot, on this host or another.

    Attributes
    ----------
    pid : int or None
        None until the process has begun, and for a process of another host.
    """

    def __init__(self, kill: Callable[[], None]) -> None:
        self._kill = kill
        self._ended = threading.Event()
        self._code: int | None = None
        self.pid: int | None = None

    def end(self, code: int) -> None:
        """Take note of the process's end."""
        self._code = code
        self._ended.set()

    def poll(self) -> int | None:
        """Return the exit code, None while the process runs."""
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process's end; raise `subprocess.TimeoutExpired`."""
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired("slot", timeout or 0.0)
        assert self._code is not None
        return self._code

    def kill(self) -> None:
        """Kill the process."""
        self._kill()


class ForkServer:
    """Starts slots on this host, through a program that it starts and ends.

    Parameters
    ----------
    specs : iterable of Spec
        Specs of the operators whose slots it starts.
    """

    def __init__(self, specs: Iterable[Spec]) -> None:
        self._channel, theirs = multiprocessing.Pipe()
        command = [sys.executable, "-m", __name__, str(theirs.fileno())]
        self._program = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            env=environment(),
            pass_fds=[theirs.fileno()],
            # Ctrl-C in a terminal must reach the driver only, also while this program loads
            process_group=0,
        )
        theirs.close()
        self._numbers = itertools.count()
        self._processes: dict[int, ForkedProcess] = {}
        self._lock = threading.Lock()
        self._loaded = threading.Event()
        self._say(_loaded_ahead(specs))
        threading.Thread(target=self._listen, name="headgate-fork-server", daemon=True).start()

    @property
    def pid(self) -> int:
        """Return the process id of the program."""
        return self._program.pid

    @property
    def is_alive(self) -> bool:
        """Return whether the program runs, and so can start slots."""
        return self._program.poll() is None

    def wait_until_loaded(self) -> None:
        """Wait until slots start at once, or the program has ended; compiling kernels takes long."""
        self._loaded.wait(_LOADS_S)

    def start(
        self, meeting: words.Meeting, operator: str, slot: int, store: Mapping[str, str]
    ) -> ForkedProcess:
        """Start the process of a slot.

        Parameters
        ----------
        meeting : words.Meeting
        operator : str
        slot : int
        store : mapping of str to str
            Options of the checkpoint's store, with credentials, which must not leave the host.
        """
        number = next(self._numbers)
        process = ForkedProcess(lambda: self._kill(number))
        with self._lock:
            self._processes[number] = process
        if not self._say((_START, number, meeting, operator, slot, dict(store))):
            process.end(LOST)
        return process

    def close(self) -> None:
        """End the program and its slots."""
        hang_up(self._channel)
        try:
            self._program.wait(_HEEDS_S)
        except subprocess.TimeoutExpired:
            self._program.kill()
            self._program.wait()

    def _kill(self, number: int) -> None:
        with self._lock:
            process = self._processes.get(number)
        if process is None:
            return
        self._say((_KILL, number))
        try:
            process.wait(_HEEDS_S)
        except subprocess.TimeoutExpired:
            self._program.kill()

    def _say(self, message: Any) -> bool:
        try:
            with self._lock:
                self._channel.send(message)
        except OSError:
            return False
        return True

    def _listen(self) -> None:
        """Process the server's messages until it ends."""
        with contextlib.suppress(OSError, EOFError):
            while True:
                number, process, code = self._channel.recv()
                if number == _LOADED:
                    self._loaded.set()
                elif number == _SAYS:
                    _LOG.warning(process)
                elif code is None:
                    self._processes[number].pid = process
                else:
                    with self._lock:
                        ended = self._processes.pop(number)
                    ended.end(code)
        self._loaded.set()
        with self._lock:
            left, self._processes = list(self._processes.values()), {}
        for ended in left:
            if ended.pid is not None:
                _end_orphan(ended.pid)
            ended.end(LOST)


def _loaded_ahead(specs: Iterable[Spec]) -> tuple[list[Spec], list[str]]:
    """Return the specs without user code, and the modules of headgate that call user code."""
    ours, modules = list[Spec](), set[str]()
    for spec in specs:
        if isinstance(spec, ProcessorSpec):
            modules.add(type(spec.processor).__module__)
        else:
            ours.append(spec)
    return ours, sorted(name for name in modules if name.startswith("headgate."))


def _end_orphan(process: int) -> None:
    """Kill a slot whose server has ended, and wait for its end: it may be stopped, or write files."""
    with contextlib.suppress(OSError, AttributeError):  # the slot has ended, or this is not Linux
        descriptor = os.pidfd_open(process)
        os.kill(process, signal.SIGKILL)
        wait([descriptor], _HEEDS_S)
        os.close(descriptor)


def environment() -> dict[str, str]:
    """Return the environment with which a program finds the same modules as this process."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


# --- in the server -----------------------------------------------------------------------------------


class _Server:
    """Forks slots at the starter's request, and reports their begin and end."""

    def __init__(self, starter: Connection) -> None:
        self._starter = starter
        self._numbers: dict[int, int] = {}
        self._directories: set[str] = set()
        self._follows, self._holds = os.pipe()
        """Slots have the first end, and this process the second, which closes when this process ends."""

    def run(self) -> None:
        """Serve until the starter ends; then kill the remaining slots, and remove their directories."""
        try:
            self._serve()
        finally:
            for process in self._numbers:
                os.kill(process, signal.SIGKILL)
            for process in self._numbers:
                os.waitpid(process, 0)
            for directory in self._directories:
                shutil.rmtree(directory, ignore_errors=True)

    def _serve(self) -> None:
        wakes, woken = os.pipe()
        os.set_blocking(woken, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        while True:
            ready = wait([self._starter, wakes])
            if wakes in ready:
                os.read(wakes, 4096)
                self._reap()
            if self._starter in ready:
                word, number, *slot = self._starter.recv()
                if word == _START:
                    if slot[0].directory:
                        self._directories.add(slot[0].directory)
                    self._fork(number, slot)
                else:
                    self._kill(number)

    def _reap(self) -> None:
        while self._numbers:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                return
            code = os.waitstatus_to_exitcode(status)
            self._starter.send((self._numbers.pop(process), process, code))

    def _kill(self, number: int) -> None:
        for process, known in self._numbers.items():
            if known == number:
                os.kill(process, signal.SIGKILL)

    def _fork(self, number: int, slot: list[Any]) -> None:
        try:
            process = _forked()
        except OSError as error:  # too many processes, or too little memory
            print(f"headgate: a slot cannot be started: {error}", file=sys.stderr)
            self._starter.send((number, 0, LOST))
            return
        if process:
            self._numbers[process] = number
            self._starter.send((number, process, None))
            return
        code = 1
        try:
            self._be_slot(*slot)
            code = 0
        except BaseException:
            with contextlib.suppress(Exception):
                traceback.print_exc()
        finally:
            try:
                sys.stdout.flush()
                sys.stderr.flush()
            finally:  # even after an error of a stream: the slot must not run the server's code
                os._exit(code)

    def _be_slot(
        self, meeting: words.Meeting, operator: str, slot: int, store: Mapping[str, str]
    ) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._starter.close()
        os.close(self._holds)
        threading.Thread(target=self._end_with_server, daemon=True).start()
        np.random.seed()  # a user's function may use it; forks would share one sequence
        with contextlib.suppress(OSError, EOFError):  # the driver has ended
            SlotProcess(meeting, operator, slot, store).run()

    def _end_with_server(self) -> None:
        os.read(self._follows, 1)
        os._exit(1)


def _forked() -> int:
    with warnings.catch_warnings():
        # Python warns of threads, which belong to libraries that support a fork
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _load(starter: Connection) -> None:
    """Load what slots use; say when kernels are compiled, and at the end."""
    with announce_compiling(lambda line: starter.send((_SAYS, line, None))):
        heap.warm()
        specs, modules = starter.recv()
        for name in modules:
            importlib.import_module(name)
        for spec in specs:
            with contextlib.suppress(Exception):  # a slot warms up again, and reports the error
                warm(spec)
    starter.send((_LOADED, 0, None))


def main() -> None:
    """Serve the process at the other end of the channel that the argument names."""
    with contextlib.suppress(OSError, EOFError), Connection(int(sys.argv[1])) as starter:
        _load(starter)
        gc.collect()
        gc.freeze()
        _Server(starter).run()


if __name__ == "__main__":
    main()
