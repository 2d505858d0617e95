"""Reproduces the figures of the StreamSwitch paper on the simulator in continuous mode.

One module per figure or pair of figures; `exchange` and `waves` hold what several of them run,
`sweep` what figures 5 and 17 share.
"""
