"""Reproduces the figures and tables of the Henge paper on the simulated fleet.

One module per figure; `fleets` holds what they share: clusters, jobs, and results. In the first 900 s of
a run Henge only observes [P]. A change of slots costs as much as in the paper's Storm (`RESTART`) unless
a figure says otherwise.
"""
