"""Starts the processes of slots within milliseconds: forks them from one that has loaded everything.

A Python process needs a second of a core until it has loaded what a slot uses and compiled code is at
hand; in that second the slots that serve would be short of it. The fork server spends it once, ahead of
the first slot. It runs no code of the user's, so that no thread of theirs is lost in a fork. Slots end
with it, and it ends with the process that started it.
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
"""Exit code of a process that nobody can tell of any more."""

_LOG = logging.getLogger("headgate")

_HEEDS_S = 5.0
"""How long the server may take to end a slot; then it is ended itself, with all of them. Chosen."""


class ForkedProcess:
    """The process of a slot, on this host or another.

    Attributes
    ----------
    pid : int or None
        None until it has begun, and where it is another host's.
    """

    def __init__(self, kill: Callable[[], None]) -> None:
        self._kill = kill
        self._ended = threading.Event()
        self._code: int | None = None
        self.pid: int | None = None

    def end(self, code: int) -> None:
        """Take note of its end."""
        self._code = code
        self._ended.set()

    def poll(self) -> int | None:
        """Return the code that it ended with, None while it runs."""
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raise `subprocess.TimeoutExpired`."""
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired("slot", timeout or 0.0)
        assert self._code is not None
        return self._code

    def kill(self) -> None:
        """End it at once."""
        self._kill()


class ForkServer:
    """Starts slots on this host, through a program that it keeps.

    Parameters
    ----------
    specs : iterable of Spec
        Of the operators whose slots it starts.
    """

    def __init__(self, specs: Iterable[Spec]) -> None:
        self._channel, theirs = multiprocessing.Pipe()
        command = [sys.executable, "-m", __name__, str(theirs.fileno())]
        self._program = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            env=environment(),
            pass_fds=[theirs.fileno()],
            # Ctrl-C in a terminal is the driver's, also while this program loads
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
        """Return its process."""
        return self._program.pid

    @property
    def is_alive(self) -> bool:
        """Return whether it can start slots."""
        return self._program.poll() is None

    def wait_until_loaded(self) -> None:
        """Wait until slots start at once, or the program is gone; to compile kernels takes long."""
        self._loaded.wait()

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
            Options of the checkpoint's store, among them credentials, which leave no host.
        """
        number = next(self._numbers)
        process = ForkedProcess(lambda: self._kill(number))
        with self._lock:
            self._processes[number] = process
        if not self._say((_START, number, meeting, operator, slot, dict(store))):
            process.end(LOST)
        return process

    def close(self) -> None:
        """End it, and what it has started."""
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
        """Take note of what the server says, until it is gone."""
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
    """Return the specs without code of the user's, and headgate's modules that call such code."""
    ours, modules = list[Spec](), set[str]()
    for spec in specs:
        if isinstance(spec, ProcessorSpec):
            modules.add(type(spec.processor).__module__)
        else:
            ours.append(spec)
    return ours, sorted(name for name in modules if name.startswith("headgate."))


def _end_orphan(process: int) -> None:
    """End a slot whose server is gone, and wait for that: it may be stopped, or be writing."""
    with contextlib.suppress(OSError, AttributeError):  # it is gone, or this is no Linux
        descriptor = os.pidfd_open(process)
        os.kill(process, signal.SIGKILL)
        wait([descriptor], _HEEDS_S)
        os.close(descriptor)


def environment() -> dict[str, str]:
    """Return the environment of a program that finds the modules that this process finds."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


# --- in the server -----------------------------------------------------------------------------------


class _Server:
    """Forks slots as it is told, and says when they begin and end."""

    def __init__(self, starter: Connection) -> None:
        self._starter = starter
        self._numbers: dict[int, int] = {}
        self._directories: set[str] = set()
        self._follows, self._holds = os.pipe()
        """Slots hold the first end, and this process the second: it closes when this process is gone."""

    def run(self) -> None:
        """Serve until who started it is gone; then end the slots that are left, and what it has left."""
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
        except OSError as error:  # so many processes, or so much memory, there are not
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
            finally:  # whatever the streams say: behind this is the server's work
                os._exit(code)

    def _be_slot(
        self, meeting: words.Meeting, operator: str, slot: int, store: Mapping[str, str]
    ) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._starter.close()
        os.close(self._holds)
        threading.Thread(target=self._end_with_server, daemon=True).start()
        np.random.seed()  # functions of the user's may draw from it
        with contextlib.suppress(OSError, EOFError):  # the driver is gone
            SlotProcess(meeting, operator, slot, store).run()

    def _end_with_server(self) -> None:
        os.read(self._follows, 1)
        os._exit(1)


def _forked() -> int:
    with warnings.catch_warnings():
        # the threads that Python warns of are of libraries that know what a fork is
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
            with contextlib.suppress(Exception):  # a slot does it again, and says what is wrong
                warm(spec)
    starter.send((_LOADED, 0, None))


def main() -> None:
    """Serve whoever holds the other end of the channel that the argument names."""
    with contextlib.suppress(OSError, EOFError), Connection(int(sys.argv[1])) as starter:
        _load(starter)
        gc.collect()
        gc.freeze()
        _Server(starter).run()


if __name__ == "__main__":
    main()
