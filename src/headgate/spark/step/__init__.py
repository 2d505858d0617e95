"""The micro-batches of a running query: intent, run, manifest, sink, recovery, retry.

Belongs here: where batches come from, the Spark job of a chain of operators, committing what its
slots report, giving the result to the sink exactly once, writing down what was done. Does not belong
here: what an operator does (headgate.operators), when to change slots (steer).
"""
