"""Simulates a continuous dataflow record by record, with the signals of DRRS and its rivals.

Belongs here: slots that serve one record after another, channels with an output and an input cache,
watermarks, checkpoint barriers, and each method that moves key groups while records flow. Does not belong
here: policies (a run is told when to scale), the queueing model of `engines.sim`, experiments.

Accuracy: every element in every cache is simulated. An element may stand for `count` records of one key
that travel together (a quantum): 1 in every test of semantics, more in the figures, which name the
number. Control elements take no service time. Runs are deterministic: random numbers are drawn before a
run or from a generator that is passed to the run.
"""
