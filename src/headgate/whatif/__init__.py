"""Simulates runs of a trace or a journal: the real loop and policies on a virtual clock.

Belongs here: queues, slots with service rates, operators, and the cost of a change, in continuous and in
micro-batch mode; the oracle; traces and recorded runs as input (simulate,
replay, recording, calibration, trace_file), and advice. Does not belong here: Spark, wall clocks,
global randomness, and copies of a policy's or a strategy's work.

Exactness: every record has its own arrival, service time and completion, and slots serve in the order of
arrival, so latencies are exact; no fluid replaces records. Three figures are inexact: the sample of a
tick in which a change came into force names the new assignment, slots are counted at the end of each
tick, and the records of a traced slice are at random times within it. Quantiles are within 5 %. The
network between operators takes no time.
"""
