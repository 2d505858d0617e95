"""Computes juice: the share of a job's input that is processed, for any rate and shape of its graph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter

from headgate.control.limits import check_range
from headgate.core.errors import ConfigError


@dataclass(frozen=True)
class Flow:
    """Counts the records along one edge of the operator graph in a window of time."""

    parent: str
    child: str
    """`parent`, `child`: an operator without parents is a spout. Where records wait in front of a
    job, the source is the spout, and its flow has the records that arrived and that were read."""
    sent: float
    """Records the parent sent to this child, counted at the parent, so that losses show."""
    executed: float
    """Records of this parent that the child processed, whatever their results."""
    waiting: float = 0.0
    """Records of this parent that still wait at the child at the end of the window."""


def operator_juice(flows: Sequence[Flow]) -> dict[str, float]:
    """Return the juice of each operator, summed over the spouts.

    The result is by operator, parents before children; each juice is in [0, number of spouts].

    `flows`: one per edge of an acyclic graph. Raises `ConfigError`: the graph has a cycle.

    References
    ----------
    Henge 6, equation 5: J_o = sum over parents p of J_p E_o^p / T^p, where T^p is what p sent to
    *all* its children. Differs where the paper is silent: an edge's executed records count at most as
    many as it sent (a queue that drains is no gain); the juice of a parent that sent no record goes to
    its children in equal parts, except to a child that served none while records waited.
    """
    into: dict[str, list[Flow]] = defaultdict(list)
    out_of: dict[str, list[Flow]] = defaultdict(list)
    for flow in flows:
        into[flow.child].append(flow)
        out_of[flow.parent].append(flow)
    graph = {child: [flow.parent for flow in edges] for child, edges in into.items()}
    juice: dict[str, float] = {}
    for operator in _upstream_first(graph):
        edges = into[operator]
        from_parents = [juice[e.parent] * _edge_share(e, out_of[e.parent]) for e in edges]
        juice[operator] = sum(from_parents) if edges else 1.0
    return juice


def job_juice(flows: Sequence[Flow], sink_weights: Mapping[str, float] | None = None) -> float:
    """Return the juice of a job, in [0, 1].

    `flows`: one per edge of an acyclic graph; none for a job of one operator, whose juice is 1.
    `sink_weights`: weight of a record at each sink; > 0, and 1 for a sink without an entry. Raises
    `ConfigError`: the graph has a cycle, a weight is not above 0, or an entry names an operator that
    is no sink.

    References
    ----------
    Henge 6, equation 6: the sum over sinks and spouts, divided by the number of spouts. With
    weights (observation 3) the divisor is the weighted sum of an undisturbed job, so that such a
    job has juice 1; without weights this sum is the number of spouts.
    """
    parents = {flow.parent for flow in flows}
    sinks = {flow.child for flow in flows} - parents
    weights = sink_weights or {}
    for name, weight in weights.items():
        check_range("juice", f"weight of {name}", weight, 0.0, above=True)
        if name not in sinks:
            msg = f'juice weight names "{name}", which is no sink; use {", ".join(sorted(sinks))}.'
            raise ConfigError(msg)
    if not sinks:
        return 1.0
    attained = operator_juice(flows)
    undisturbed = operator_juice([replace(f, executed=f.sent, waiting=0.0) for f in flows])
    whole = sum(weights.get(sink, 1.0) * undisturbed[sink] for sink in sinks)
    part = sum(weights.get(sink, 1.0) * attained[sink] for sink in sinks)
    return min(1.0, part / whole)


def _edge_share(flow: Flow, siblings: Sequence[Flow]) -> float:
    """Return E/T: records processed along `flow`, as a share of all records that the parent sent."""
    sent = sum(sibling.sent for sibling in siblings)
    if sent > 0.0:
        return min(flow.executed, flow.sent) / sent
    served = flow.executed > 0.0 or flow.waiting == 0.0
    return 1.0 / len(siblings) if served else 0.0


def _upstream_first(graph: Mapping[str, Iterable[str]]) -> list[str]:
    try:
        return list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        msg = f"operators {error.args[1]} form a cycle; a job's graph must have none."
        raise ConfigError(msg) from error
