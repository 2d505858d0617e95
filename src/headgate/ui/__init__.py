"""Serves a page about queries and fleets, made of their journals alone: ``headgate ui``.

Belongs here: the content of the page, read from growing journals (history, shelf, questions), its few
routes (app), the page itself (static), and commands of a person to queries (control). Does not belong
here: the meaning of a figure (`headgate.report`), and the way of a command to a query
(`headgate.scenario`). Only this room knows starlette and uvicorn, the extra ``ui``.
"""
