"""Checks and keeps a query's settings: headgate's options, and arguments of `hg.writeStream`'s methods.

Belongs here: the table of options with their ranges and defaults (options), checks of arguments
(arguments), the settings of a query as a value (query_settings). A bad value is refused at the
moment when it is set. Does not belong here: the use of a setting.
"""
