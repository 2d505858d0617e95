"""Runs the micro-batches of a query: intent, run, manifest, sink, recovery, retry.

Belongs here: the machine that takes batches (machine), the parts of a step in their order, for any
kind of work (steps), the ports of work (work_ports), the work of stateful operators (stateful), the
source of batches (intake), the routing of rows to slots (exchange), the manifest made of reports
(commit), output for the sink (output), the comparison of Spark's log with the manifest after a
restart (recovery), the journal line of a step (record). Does not belong here: sinks (sinks), stages
on replicas (pools), the meaning of an operator (headgate.operators), decisions about slots (steer).
"""
