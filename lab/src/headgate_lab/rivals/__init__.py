"""Implements policies of other systems and papers, to compare headgate's own with.

Belongs here: policies over slots, replicas and fleets that are rivals in a figure or a benchmark, and
the estimators that only these policies use. They are known by name through the entry points of
``lab/pyproject.toml``. Does not belong here: a policy that the product needs (`headgate.control`), or
the runs that compare policies (`headgate_lab.experiments`, `headgate_lab.bench`).
"""
