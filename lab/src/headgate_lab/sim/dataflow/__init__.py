"""A continuous dataflow, record by record: where DRRS and its rivals have their signals.

Belongs here: slots that serve one record after the other, channels with an output and an input
cache, watermarks, checkpoint barriers, and each method of moving key groups while records flow.
Does not belong here: policies (nobody decides anything here, a run is told when to scale), the
queueing model of `engines.sim` itself, experiments.

How exact it is: every element in every cache is simulated. An element may stand for `count` records
of one key that travel together (a quantum); 1 in every test of semantics, more in the figures, which
say how many. Control elements take no service time. Deterministic: all chance is drawn before a run
or from a generator that the run was given.
"""
