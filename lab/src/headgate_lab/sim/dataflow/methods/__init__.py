"""Implements the methods of moving state while records flow, one file per family.

Belongs here: signals, who waits for what, when a unit leaves and when it is served again. Does not
belong here: when to scale, how slots and channels work. Why these are not the six instructions of
`headgate.migration`: design note 0148.
"""
