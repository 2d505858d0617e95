"""Defines the port of a policy: a deterministic function of observations, without clock and I/O."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol, cast

from headgate.control.decision import Change, Decision
from headgate.control.observation import Observation
from headgate.core.errors import ConfigError
from headgate.core.input import shown

_ASKED = ("decide", "applied", "slot_failed")


class Policy(Protocol):
    """Decides how many slots a job has and which slot owns which key group.

    The control loop calls `decide` once per control cycle. The observation leaves out an operator
    whose counters are not valid or that has a change under way. The loop calls the other two methods
    when a change is in force and when a slot has failed. A class of your own with this base class
    needs only `decide`; see docs/own-policy.md.
    """

    @property
    def name(self) -> str:
        """Name and main parameters, as figures print it: ``streamswitch(0.2)``."""
        return type(self).__name__.lower()

    @abstractmethod
    def decide(self, observation: Observation) -> Decision:
        """Return the decision for now; empty for no change."""

    def applied(self, operator: str, change: Change, took_s: float) -> None:
        """Take note that `change` is in force, `took_s` seconds after it was decided."""

    def slot_failed(self, operator: str, slot_id: int) -> None:
        """Take note that a slot failed; the engine gives its replacement the newest assignment.

        Only a policy that stores data per slot needs this method.
        """


def checked(made: object, what: str) -> Policy:
    """Return `made`, after checking that this object has all methods of a policy, and a name.

    `what`: name of the object in messages: ``the policy``. Raises `ConfigError`: `made` is a class,
    or lacks a method or its name.
    """
    if isinstance(made, type):
        msg = f"{what} is the class {made.__name__}; give an object of it: {made.__name__}()."
        raise ConfigError(msg)
    kind = type(made).__name__
    lacks = [f"method {name}" for name in _ASKED if not callable(getattr(made, name, None))]
    if not isinstance(getattr(made, "name", None), str):
        lacks.append("text called name")
    if lacks:
        msg = f"{what}, of type {kind}, has no {lacks[0]}; derive {kind} from hg.Policy."
        raise ConfigError(msg)
    return cast(Policy, made)


def asked(policy: Policy, observation: Observation) -> Decision:
    """Return the decision of `policy`, after checking its type.

    Raises `ConfigError`: `decide` returned no `Decision`.
    """
    decision: object = policy.decide(observation)
    if isinstance(decision, Decision):
        return decision
    msg = (
        f"the policy {policy.name} returned {shown(repr(decision), 60)}; decide must return a Decision, "
        "NOTHING where it wants none."
    )
    raise ConfigError(msg)
