"""Contains workloads for a first try of headgate, and their load generators.

Belongs here: everything that ``headgate run nexmark-q5`` and similar commands need in addition to the
product: generated records (generators), sources, queries and a Kafka broker (spark), the declarations
that ``headgate run`` finds (workloads), the command ``headgate demo`` (cli). Does not belong here:
anything that a user's job needs; the product imports nothing from this distribution.
"""

from __future__ import annotations
