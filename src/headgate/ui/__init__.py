"""Serves a page about queries and fleets, made of their journals alone: ``headgate ui``.

Belongs here: keeping what a page needs of a journal as it grows, the few routes that give it out,
the page itself (static), and passing on commands of a person (control). Does not belong here: what a
figure means, which is `headgate.report`, and how a command reaches a query, which is
`headgate.scenario`. Only this room knows starlette and uvicorn, the extra ``ui``.
"""
