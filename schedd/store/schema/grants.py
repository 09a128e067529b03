"""Check the privileges that a role needs, and print the SQL that grants them.

    migrate's role   USAGE and CREATE on the schema; a member of the role that owns the tables;
                     SELECT, INSERT, UPDATE and DELETE on each table, which an owner has at first
    daemons' role    the same, for the leader makes and drops daily partitions

A separate daemons' role is a member of the owning role and owns nothing itself. Partitions that it
creates are given to the owner (`partitions`).
"""

from __future__ import annotations

from sqlalchemy import Connection

_WHERE = """
SELECT current_user, current_database(), current_schema(), current_setting('search_path'),
    (SELECT tableowner FROM pg_tables
     WHERE schemaname = current_schema() AND tablename = 'alembic_version'),
    (SELECT nspname FROM pg_namespace
     WHERE nspname = ANY (string_to_array(replace(replace(replace(
        current_setting('search_path'), '"', ''), ' ', ''), '$user', current_user), ','))
     LIMIT 1)
"""
_PRIVILEGES = """
SELECT has_schema_privilege(%(schema)s, 'USAGE'), has_schema_privilege(%(schema)s, 'CREATE')
"""
_MEMBER = "SELECT pg_has_role(%(owner)s, 'USAGE')"
_TABLES = """
SELECT privileges, array_agg(name ORDER BY name) FROM (
    SELECT c.relname AS name, string_agg(p.name, ', ' ORDER BY p.n) AS privileges
    FROM pg_class c, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE'])
        WITH ORDINALITY p(name, n)
    WHERE c.relnamespace = %(schema)s::regnamespace AND c.relkind IN ('r', 'p')
        AND NOT c.relispartition AND NOT has_table_privilege(c.oid, p.name)
    GROUP BY c.relname
) t GROUP BY privileges ORDER BY privileges
"""


def missing(connection: Connection) -> str:
    """Return the privileges that the current role lacks for the schema, and the SQL to grant them.
    Empty if the role lacks nothing. Reads catalogs only, so it works without any privilege.
    """
    found = connection.exec_driver_sql(_WHERE).one()
    role, database, schema, path, owner, hidden = found
    role_, database_ = _quoted(role), _quoted(database)
    if schema is None and hidden is not None:
        return _missing(
            f"role {role} lacks USAGE on schema {hidden} of database {database}",
            f"GRANT USAGE, CREATE ON SCHEMA {_quoted(hidden)} TO {role_};",
        )
    if schema is None:
        return _missing(
            f"no schema of the search path ({path}) exists in database {database}",
            f"CREATE SCHEMA IF NOT EXISTS schedd AUTHORIZATION {role_};",
            f"ALTER ROLE {role_} IN DATABASE {database_} SET search_path = schedd;",
        )
    if owner and not connection.exec_driver_sql(_MEMBER, {"owner": owner}).scalar_one():
        return _missing(
            f"role {role} isn't a member of role {owner}, which owns the tables",
            f"GRANT {_quoted(owner)} TO {role_};",
        )
    usage, create = connection.exec_driver_sql(_PRIVILEGES, {"schema": schema}).one()
    if not (usage and create):
        return _missing(
            f"role {role} can't create tables in schema {schema} of database {database}",
            f"GRANT USAGE, CREATE ON SCHEMA {_quoted(schema)} TO {role_};",
        )
    if not owner:
        return ""
    lacks = connection.exec_driver_sql(_TABLES, {"schema": _quoted(schema)}).all()
    if not lacks:
        return ""
    return _missing(
        f"role {role} lacks "
        + "; ".join(f"{privileges} on {', '.join(names)}" for privileges, names in lacks),
        *(
            f"GRANT {privileges} ON TABLE {', '.join(map(_quoted, names))} TO {role_};"
            for privileges, names in lacks
        ),
    )


def for_daemons(connection: Connection) -> str:
    """Return the SQL for a separate daemons' role, as SQL comments."""
    role, database, schema, *_ = connection.exec_driver_sql(_WHERE).one()
    statements = (
        f"GRANT CONNECT ON DATABASE {_quoted(database)} TO DAEMON;",
        f"GRANT {_quoted(role)} TO DAEMON;",
        f"ALTER ROLE DAEMON IN DATABASE {_quoted(database)} SET search_path = {_quoted(schema)};",
        "ALTER ROLE DAEMON SET statement_timeout = '3s';",
        "ALTER ROLE DAEMON SET lock_timeout = '2s';",
        "ALTER ROLE DAEMON SET idle_in_transaction_session_timeout = '2s';",
    )
    lines = "".join(f"\n--   {statement}" for statement in statements)
    return f"-- if the daemons use a role of their own (DAEMON), and not {role}:{lines}"


def _missing(why: str, *statements: str) -> str:
    lines = "\n".join(f"    {statement}" for statement in statements)
    return f"{why}. Run in this database, as its owner or a superuser:\n{lines}"


def _quoted(name: str) -> str:
    plain = name.replace("_", "a").isalnum() and name == name.lower() and not name[0].isdigit()
    return name if plain else '"' + name.replace('"', '""') + '"'
