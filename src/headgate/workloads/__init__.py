"""Computes how many records are due at which time: rate functions, traces, arrivals.

Belongs here: rate functions (rates), recorded logs (traces), and the arrivals of a simulation that come
from either (arrivals). Does not belong here: the content of a record (`headgate run`'s workloads bring
their own), anything of Spark, the speed of an engine. Backpressure does not delay an arrival: the
scheduled time is the arrival.
"""

from __future__ import annotations
