"""What a query was told: headgate's options, and what the methods of `hg.writeStream` are given.

Belongs here: the table of options, their ranges and defaults, and refusing what makes no sense at the
moment it is set. Does not belong here: what is done with a setting.
"""
