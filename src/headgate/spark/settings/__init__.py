"""Checks and keeps a query's settings: headgate's options, and arguments of `hg.writeStream`'s methods.

Belongs here: the table of options, their ranges and defaults, and refusing what makes no sense at the
moment it is set. Does not belong here: what is done with a setting.
"""
