"""The micro-batches of a running query: intent, run, manifest, sink, recovery, retry.

Belongs here: the machine that does a step whatever its work is (machine), the two kinds of work
(stateful, pools), where batches come from, committing what tasks report, giving the result to the sink
exactly once, writing down what was done. Does not belong here: what an operator does
(headgate.operators), when to change slots (steer).
"""
