"""Serves a page about queries and fleets, made of their journals alone: ``headgate ui``.

Belongs here: keeping what a page needs of a journal as it grows, the few routes that give it out, and
the page itself (static). Does not belong here: what a figure means, which is `headgate.report`, and
anything that changes a query. Only this room knows starlette and uvicorn, the extra ``ui``.
"""
