"""Runs one simulation: a job, a policy and a seed, from the first record to the result."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from headgate.control.policy import Policy
from headgate.core.errors import ConfigError, nearest
from headgate.loop.loop import ControlLoop
from headgate.loop.settings import OperatorSettings
from headgate.whatif.continuous import ContinuousEngine, ContinuousOperator
from headgate.whatif.decisions import DecisionLog
from headgate.whatif.microbatch import BatchOperator, MicroBatchEngine
from headgate.whatif.model import MicroBatch, OperatorModel
from headgate.whatif.result import RunResult
from headgate.whatif.streams import Inflow, Records
from headgate.workloads.arrivals import ArrivalFeed, ArrivalStream

_ROUNDING = 1e-9

# Independent random streams of each operator.
_SOURCE, _RECORDS, _SLOTS = range(3)


@dataclass(frozen=True)
class SimulatedJob:
    """Holds the operators of a job and their sources."""

    operators: Mapping[str, OperatorModel]
    """Upstream first."""
    sources: Mapping[str, ArrivalStream]
    """Arrivals at each operator without parents."""

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for name, model in self.operators.items():
            for parent in model.parents:
                if parent not in seen:
                    hint = nearest(parent, seen) or "; list operators upstream first."
                    msg = f'operator "{name}" has the unknown parent "{parent}"{hint}'
                    raise ConfigError(msg)
            if bool(model.parents) == (name in self.sources):
                msg = f'operator "{name}" needs either parents or a source; give one of them.'
                raise ConfigError(msg)
            source = self.sources.get(name)
            if source is not None and source.key_groups != model.key_groups:
                msg = (
                    f'the source of operator "{name}" has {source.key_groups} key groups, the '
                    f"operator {model.key_groups}; make them equal."
                )
                raise ConfigError(msg)
            seen.add(name)


class Simulation:
    """Runs a job under a policy, on a virtual clock; deterministic for a seed.

    Parameters
    ----------
    policy : Policy    Use a new policy for each run: policies have state.
    settings : mapping of str to OperatorSettings
        SLO and limits of each operator. In continuous mode a floor that is to be measured is 0.
    seed : int
        The only source of randomness. With the same seed, all policies see the same records, with the
        same service times.
    delta_s : float    delta: length of a tick, and of a control cycle in continuous mode; seconds.
    micro_batch : MicroBatch or None
        None for continuous mode. Else the loop runs once per batch.
    end_to_end_s : float or None    As `Observation.end_to_end_s`.
    settings_at : callable or None
        Micro-batch mode: returns the settings of an operator that reads a source, from its name and
        the latency floor in seconds that the engine has measured. Called after every batch.
    """

    def __init__(
        self,
        job: SimulatedJob,
        policy: Policy,
        settings: Mapping[str, OperatorSettings],
        *,
        seed: int,
        delta_s: float = 0.1,
        micro_batch: MicroBatch | None = None,
        end_to_end_s: float | None = None,
        settings_at: Callable[[str, float], OperatorSettings] | None = None,
    ) -> None:
        if not (delta_s > 0.0 and math.isfinite(delta_s)):
            msg = f"delta_s of a simulation is {delta_s:g}; give seconds above zero."
            raise ConfigError(msg)
        if set(settings) != set(job.operators):
            msg = f"settings are for {sorted(settings)}; give them for {sorted(job.operators)}."
            raise ConfigError(msg)
        self._job = job
        self._policy = policy
        self._settings = settings
        self._seed = seed
        self._delta_s = delta_s
        self._micro_batch = micro_batch
        self._end_to_end_s = end_to_end_s
        self._settings_at = settings_at

    def run(self, until_s: float) -> RunResult:
        """Run from 0 to `until_s`, rounded up to whole ticks, and return the result.

        Records in service at the end are left out.
        """
        delta_s = self._delta_s
        ticks = max(1, math.ceil(until_s / delta_s - _ROUNDING))
        engine = self._engine(ticks)
        log = DecisionLog(clock=lambda: engine.time_s)
        loop = ControlLoop(
            self._policy,
            engine,
            engine,
            log,
            self._loop_settings(),
            delta_s=delta_s,
            parents={n: m.parents for n, m in self._job.operators.items() if m.parents},
            end_to_end_s=self._end_to_end_s,
        )
        while engine.time_s < ticks * delta_s - _ROUNDING:
            for name, time_s in engine.advance():
                loop.applied(name, time_s)
            if self._settings_at is not None and isinstance(engine, MicroBatchEngine):
                for name in self._job.sources:
                    loop.configure(name, self._settings_at(name, engine.floor_s))
            loop.cycle(engine.time_s)
        engine.finish()
        return RunResult(
            policy=self._policy.name,
            seed=self._seed,
            mode="continuous" if self._micro_batch is None else "micro-batch",
            delta_s=delta_s,
            settings=dict(self._settings),
            operators={name: op.measures for name, op in engine.operators.items()},
            decisions=log.entries,
        )

    def records(self, operator: str, until_s: float) -> Records:
        """Return the records that a run brings to an operator with a source, up to `until_s`."""
        return self._inflow(operator).until(until_s, ())

    def _loop_settings(self) -> dict[str, OperatorSettings]:
        if self._micro_batch is not None:
            return dict(self._settings)
        return {
            name: replace(s, floor_s=0.0) if s.floor_s is None else s
            for name, s in self._settings.items()
        }

    def _engine(self, ticks: int) -> ContinuousEngine | MicroBatchEngine:
        if self._micro_batch is None:
            continuous = {
                name: ContinuousOperator(
                    name,
                    model,
                    self._inflow(name),
                    self._generator(name, _SLOTS),
                    ticks=ticks,
                    delta_s=self._delta_s,
                )
                for name, model in self._job.operators.items()
            }
            return ContinuousEngine(continuous, self._delta_s)
        batched = {
            name: BatchOperator(
                name,
                model,
                self._inflow(name),
                self._generator(name, _SLOTS),
                engine=self._micro_batch,
                ticks=ticks,
                delta_s=self._delta_s,
            )
            for name, model in self._job.operators.items()
        }
        return MicroBatchEngine(batched, self._micro_batch, self._delta_s)

    def _inflow(self, name: str) -> Inflow:
        source = self._job.sources.get(name)
        feed = None if source is None else ArrivalFeed(source, self._generator(name, _SOURCE))
        return Inflow(self._job.operators[name], feed, self._generator(name, _RECORDS))

    def _generator(self, name: str, purpose: int) -> np.random.Generator:
        index = list(self._job.operators).index(name)
        return np.random.default_rng([self._seed, index, purpose])
