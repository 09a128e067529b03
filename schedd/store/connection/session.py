"""Set the session settings that schedd's statements and the driver depend on, on each connection.

Prepared statements (`prepared`) are planned once in a session: planning a short batch takes longer
than its execution.

Environment variables (PGCLIENTENCODING, PGOPTIONS, PGTZ, PGDATESTYLE) and settings of the server,
the database or the role can't change them. PgBouncer in transaction mode tracks each of these for
its client, so no server connection of its pool has others. Exceptions are `row_security`,
`default_transaction_isolation` and `plan_cache_mode`: there they are set for the server connection
of the login only.

`row_security` off: a policy that would hide rows makes the statement fail. Otherwise a row that is
hidden counts as one that doesn't exist, and a result for it as STALE. At a higher isolation level
owners that lock the same rows fail with 40001 instead of waiting for one another.

Not set, because nothing here depends on them: `bytea_output` and `extra_float_digits` (the driver
reads every form), `lc_messages`. `search_path` is the role's: it says where the schema is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

SETTINGS: Final[Mapping[str, str]] = {
    "client_encoding": "UTF8",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "standard_conforming_strings": "on",
    "row_security": "off",
    "default_transaction_isolation": "read committed",
    "plan_cache_mode": "force_generic_plan",
}

_SET: Final = "; ".join(f"SET {name} = '{value}'" for name, value in SETTINGS.items())

ENCODING: Final = "UTF8"
"""Of the server's database: any other can't store every text that a job writes."""


def parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    """The connection parameters, without what libpq would take from the environment."""
    return {"client_encoding": "UTF8", "options": "", **given}


def prepare(raw: Any) -> None:
    """Set them for this connection of the driver, outside of any transaction."""
    raw.autocommit = True
    with raw.cursor() as cursor:
        cursor.execute(_SET)
    raw.set_client_encoding("UTF8")
    raw.autocommit = False
