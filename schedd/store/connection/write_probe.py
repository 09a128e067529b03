"""Write and delete one page, to learn whether PostgreSQL takes writes and has room for them.

A small UPDATE succeeds on a full disk, as it reuses the space of its page. So the probe inserts a
row that needs a new page. Autovacuum gives the pages back; where it doesn't run, the table stops
growing at `MOST` bytes and the probe writes small rows.

The table is UNLOGGED: its pages aren't in the write-ahead log, and no publication has it. A commit
that changed such a table alone isn't flushed, so the probe locks a row of a logged table, too: that
is a record in the log. A probe writes about 100 bytes of WAL, 3 MB a day; with a logged table it
was 7.2 KB, 200 MB a day.
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

LOG: Final = "SELECT FROM cluster WHERE one FOR KEY SHARE"
"""Blocks no other lock that members take on the row."""


def write(connection: Connection) -> None:
    """Insert the row, delete it again, and write to the log. The commit is flushed."""
    connection.exec_driver_sql(WRITE)
    connection.exec_driver_sql("DELETE FROM write_probes")
    connection.exec_driver_sql(LOG)
