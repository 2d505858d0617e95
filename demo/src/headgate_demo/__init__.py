"""Workloads for a first try of headgate, and their load generators.

Belongs here: everything that ``headgate run nexmark-q5`` and the like need beside the product: generated
records (generators), sources, queries and a Kafka broker (spark), the declarations that ``headgate run``
finds (workloads), the command ``headgate demo`` (cli). Does not belong here: anything that a job of a
user needs; the product imports nothing of this distribution.
"""

from __future__ import annotations
