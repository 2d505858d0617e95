"""Finds methods by their names in tables and tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headgate.core.errors import ConfigError, nearest
from headgate_lab.sim.dataflow.coordinator import Method
from headgate_lab.sim.dataflow.methods import coupled
from headgate_lab.sim.dataflow.methods.bounds import StopRestart, Unbound
from headgate_lab.sim.dataflow.methods.drrs import Drrs
from headgate_lab.sim.dataflow.methods.meces import Meces

METHODS: Mapping[str, Callable[[], Method]] = {
    "drrs": Drrs,
    "megaphone": coupled.megaphone,
    "meces": Meces,
    "otfs fluid": coupled.fluid,
    "otfs at once": coupled.all_at_once,
    "stop-restart": StopRestart,
    "unbound": Unbound,
    "only decoupling": lambda: Drrs(scheduling=False, division=False),
    "only scheduling": coupled.only_scheduling,
    "only subscale": coupled.only_subscale,
}
"""Methods by name. *only ...* is DRRS with one mechanism (V-C); with none it is *otfs fluid*."""


def method(name: str) -> Method:
    """Return a method with the paper's parameters.

    Raises
    ------
    ConfigError
        No method has that name.
    """
    if name not in METHODS:
        hint = nearest(name, METHODS) or f"; known: {', '.join(METHODS)}."
        msg = f'unknown method "{name}"{hint}'
        raise ConfigError(msg)
    return METHODS[name]()
