"""The micro-batches of a running query: intent, run, manifest, sink, recovery, retry.

Belongs here: the machine that does a step whatever its work is (machine), the work of stateful
operators (stateful), the source of batches, the commit of reports, the delivery to the sink exactly
once, the journal of a step. Does not belong here: sinks (sinks), stages on replicas (pools), the
meaning of an operator (headgate.operators), the moment of a change of slots (steer).
"""
