"""Defines the port of the engine that runs a scenario's query."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from headgate.scenario.description import Scenario


class ScenarioQuery(Protocol):
    """Controls a running query; the part of a query that a scenario needs."""

    journal: Any
    isActive: bool

    def scale(self, n: int, *, by: str) -> object:
        """Ask for `n` slots from the next batch on."""

    def exception(self) -> object:
        """Return the error that ended the query, or None."""

    def stop(self) -> None:
        """End the query after its batch."""


class Engine(Protocol):
    """Starts and verifies queries; the part of an engine that a scenario needs."""

    def rehearse(self, scenario: Scenario, interrupted: Callable[[], bool]) -> None:
        """Load and compile everything that the scenario will need, where that can be done."""

    def start(self, scenario: Scenario) -> ScenarioQuery:
        """Start the scenario's query."""

    def verify(self, scenario: Scenario) -> Mapping[str, Any]:
        """Compare the scenario's output with Spark's batch answer."""

    def close(self) -> None:
        """Release the engine's resources."""
