"""A streaming standby of the primary. It knows each commit as the primary does.

    pg ──WAL──→ ps      synchronous: what pg acknowledges, ps has
     └ slot      └ the same slot, as it was when it was made

The commits of a run are read from a slot, and a slot isn't streamed: its state is copied when it
is made (before any daemon starts), as fail-over managers do, so that after a promotion all that the
standby has can be read there from the beginning, under the numbers that it had before.

- The standby keeps back what its slot needs, on the primary too (`hot_standby_feedback`).
- `synchronous_standby_names` is the primary's own: a promoted standby waits for no other.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from faults.world.network import Host
from faults.world.postgres import PORT, SLOT, Server
from schedctl.dev.servers import postgres
from support.wait import wait_until

UP_WITHIN = 30.0
STREAM = "standby"
"""The primary's slot for what the standby has yet to receive."""


def dsn_of(hosts: Sequence[Host]) -> str:
    """Return the DSN of whichever host takes writes (docs/operations/postgresql-standby.md)."""
    where = "&".join(f"host={host.address}:{PORT}" for host in hosts)
    return f"postgresql://{postgres.ROLE}@/{postgres.ROLE}?{where}&target_session_attrs=read-write"


def keep_commits(primary: Server, standby: Server) -> None:
    """Have the standby follow, synchronously, and every commit from now on be kept on both."""
    standby.data.parent.mkdir()
    primary.sql("SELECT pg_create_physical_replication_slot(%s, true)", STREAM)
    options = ("--slot", STREAM, "--checkpoint", "fast", "--write-recovery-conf")
    primary.copy_to(standby, standby.data, *options)
    with (standby.data / "postgresql.conf").open("a", encoding="utf-8") as settings:
        settings.write("hot_standby_feedback = on\n")
    primary.keep_commits()  # after the copy: what it begins with is streamed
    shutil.copytree(primary.data / "pg_replslot" / SLOT, standby.data / "pg_replslot" / SLOT)
    standby.service.start()
    _await_state(primary, "async", "streaming")
    primary.sql(f"ALTER SYSTEM SET synchronous_standby_names = '{standby.host.name}'")
    primary.sql("SELECT pg_reload_conf()")
    _await_state(primary, "sync", "streaming")


def promote(standby: Server) -> None:
    """Returns when it takes writes, on a timeline of its own."""
    standby.sql("SELECT pg_promote()")
    wait_until(lambda: standby.sql("SELECT NOT pg_is_in_recovery()") == [(True,)], 10, "promotion")


def _await_state(primary: Server, sync: str, state: str) -> None:
    query = "SELECT sync_state, state FROM pg_stat_replication"
    wait_until(
        lambda: primary.sql(query) == [(sync, state)], UP_WITHIN, f"the standby to be {sync}"
    )
