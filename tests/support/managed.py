"""Restrictions of managed services, on a scratch server."""

from __future__ import annotations

from typing import Final

from schedctl.dev.servers import postgres

_REFUSES: Final = """
ALTER FUNCTION pg_catalog.{signature} RENAME TO not_given;
CREATE FUNCTION pg_catalog.{signature} RETURNS {kind} LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'logical replication is not enabled' USING ERRCODE = '55000'; END $$
"""


def without_timeline(admin_dsn: str) -> None:
    """Have a database refuse what Aurora refuses without logical replication.

    A replaced built-in function keeps its fast path, so each is renamed, and a new one takes its
    name.
    """
    with postgres.connect(admin_dsn) as session, session.cursor() as cursor:
        cursor.execute("SET allow_system_table_mods = on")
        for signature, kind in (
            ("pg_current_wal_lsn()", "pg_lsn"),
            ("pg_walfile_name(pg_lsn)", "text"),
        ):
            cursor.execute(_REFUSES.format(signature=signature, kind=kind))
