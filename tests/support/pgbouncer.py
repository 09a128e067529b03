"""A real PgBouncer in transaction mode before a scratch server (the Debian package `pgbouncer`)."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from psycopg2 import Error

from schedctl.dev.servers import postgres, processes
from schedctl.dev.servers.processes import end, spawn
from support.postgres import ScratchServer
from support.wait import WAIT_TIMEOUT, wait_until

SETTINGS = """
[databases]
* = host=127.0.0.1 port={server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
pool_mode = transaction
default_pool_size = 20
max_client_conn = 400
server_reset_query =
logfile =
pidfile =
"""


@contextmanager
def pgbouncer(server: ScratchServer, folder: Path, database: str) -> Iterator[str]:
    """The DSN of `database` through a PgBouncer of its own."""
    program = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/bin")
    assert program, "this test needs PgBouncer: apt-get install pgbouncer"
    folder.mkdir(parents=True, exist_ok=True)
    users, settings = folder / "users.txt", folder / "pgbouncer.ini"
    users.write_text('"schedd" ""\n')
    port = processes.reserve(1)[0]
    settings.write_text(SETTINGS.format(server=server.port, port=port, users=users))
    prefix = postgres.nonroot_prefix(folder, Path(program))
    log = folder / "pgbouncer.log"
    process = spawn([*prefix, program, str(settings)], log=log, cwd=folder)

    def answers() -> bool:
        assert process.alive(), log.read_text()
        try:
            with postgres.connect(dsn) as session, session.cursor() as cursor:
                cursor.execute("SELECT 1")
        except Error:
            return False
        return True

    dsn = f"postgresql://schedd@127.0.0.1:{port}/{database}"
    try:
        wait_until(answers, WAIT_TIMEOUT, "PgBouncer to answer")
        yield dsn
    finally:
        end([process], (signal.SIGINT, 5.0))
