"""Write and delete one page, to learn whether PostgreSQL takes writes and has room for them.

A small UPDATE succeeds on a full disk, as it reuses the space of its page. So the probe inserts a
row that needs a new page. Autovacuum gives the pages back; where it doesn't run, the table stops
growing at `MOST` bytes and the probe writes small rows.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection

PAGE: Final = 7000
"""Bytes that no other row of a page leaves free."""
MOST: Final = 4 * 1024 * 1024

WRITE: Final = f"""
INSERT INTO write_probes (padding)
SELECT decode(repeat('00', CASE WHEN pg_relation_size('write_probes') < {MOST} THEN {PAGE}
                           ELSE 1 END), 'hex')
"""


def write(connection: Connection) -> None:
    """Insert the row and delete it again. Its commit is flushed as any other."""
    connection.exec_driver_sql(WRITE)
    connection.exec_driver_sql("DELETE FROM write_probes")
