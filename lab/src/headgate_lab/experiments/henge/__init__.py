"""Reproduces the figures and tables of the Henge paper on the simulated fleet.

One module per figure; `fleets` holds what they share: clusters, jobs, and what a run comes to. A run
begins with 900 s in which Henge only watches [P]. A change of slots costs what it cost the paper's
Storm (`RESTART`) unless a figure says otherwise.
"""
