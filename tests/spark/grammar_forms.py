"""Forms of queries that people write, each as it is: payloads, columns, Python, SQL, joins, models."""

from __future__ import annotations

from forms_columns import COLUMNS, PAYLOADS
from forms_found import FOUND
from forms_more import MORE
from forms_python import PYTHON
from forms_sql import JOINS, SQL

FORMS = PAYLOADS | COLUMNS | PYTHON | SQL | JOINS | MORE | FOUND
