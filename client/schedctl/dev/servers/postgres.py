"""Run a PostgreSQL server: create, start, prepare, stop and clean up.

Invariants
- The started process is the postmaster itself, so that a signal to its pid reaches PostgreSQL.
- After `stop` or the next start, a killed server has left no stale lock file, no backend, no
  System V segment and no file in /dev/shm.
- Callers hold the folder's lock: processes in a data folder before its start are leftovers.
"""

from __future__ import annotations

import base64
import ctypes
import hashlib
import hmac
import os
import pwd
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from schedctl.dev.errors import DevError, NotReady, ProcessEnded
from schedctl.dev.servers.binaries import PostgresBinaries
from schedctl.dev.servers.processes import HOST, DevProcess, end, living_in, spawn, tail, wait_for

# Run PostgreSQL, which rejects root, as any user.
#
# As root, in this order:
#
# 1. in a user namespace that maps root to an ordinary user (`unshare --map-user`). The file system
#    still sees root, so data folders under a closed home work, and no mode is changed;
# 2. where namespaces are forbidden (containers, and any chroot), as an unprivileged user by
#    `setpriv`, which keeps the one capability needed to pass closed parent folders.
#
# `unshare` without `--fork`, and `setpriv`, exec the program: its pid is the server's own. The
# mapped user must have an entry in the password file, else initdb fails.


def nonroot_prefix(data: Path, program: Path) -> list[str]:
    """Return the words to put before `program` (`initdb` or `postgres`) for this data folder. The
    folder needn't exist yet. Raises DevError: this process is root and can't start an unprivileged
    process that runs it.
    """
    owner = data.stat().st_uid if data.exists() else None
    for prefix in _ways(os.geteuid(), owner):
        if not prefix or _works(prefix):
            break
    else:
        raise DevError(
            "PostgreSQL can't run as root, and this host doesn't permit schedctl to change the user"
            " (with unshare or setpriv)",
            "run schedctl as another user, or name a running server: --postgres DSN",
        )
    if prefix[:1] == ["setpriv"] and not open_to_all(program):
        # The capability would suffice, but PostgreSQL calls access(2), which ignores it.
        raise DevError(
            f"PostgreSQL can't run: only root can read its folder {program.parent}, and this host"
            " forbids user namespaces",
            "install PostgreSQL from the system's packages, or make the folder readable for all",
        )
    return prefix


def _ways(user: int, owner: int | None) -> Iterator[list[str]]:
    shown = _ordinary_user()
    namespace = ["unshare", "--user", f"--map-user={shown.pw_uid}", f"--map-group={shown.pw_gid}"]
    if user != 0:
        if not _has_a_name(user):  # an arbitrary uid, as container platforms give
            yield namespace
        yield []
        return
    if owner is None or owner == 0:
        yield namespace
    user_id, group_id = (owner, owner) if owner else (shown.pw_uid, shown.pw_gid)
    setpriv = ["setpriv", f"--reuid={user_id}", f"--regid={group_id}", "--clear-groups"]
    yield [*setpriv, "--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
    yield setpriv


def open_to_all(path: Path) -> bool:
    """Return whether any user may enter the path; parts that don't exist are ignored."""
    return all(not each.exists() or each.stat().st_mode & 0o001 for each in (path, *path.parents))


def _works(prefix: list[str]) -> bool:
    try:
        trial = subprocess.run([*prefix, "true"], capture_output=True, timeout=10, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return False
    return trial.returncode == 0


def _has_a_name(user: int) -> bool:
    try:
        pwd.getpwuid(user)
    except KeyError:
        return False
    return True


def _ordinary_user() -> pwd.struct_passwd:
    try:
        return pwd.getpwuid(OVERFLOW_UID)
    except KeyError:
        return next(entry for entry in pwd.getpwall() if entry.pw_uid != 0)


if TYPE_CHECKING:
    from psycopg2.extensions import connection

ROLE = "schedd"
ADMIN = "postgres"

OVERFLOW_UID = 65534
"""The unprivileged user of every Linux system."""

SETTINGS: Mapping[str, str] = {
    "max_connections": "200",
    "shared_buffers": "128MB",
    "max_wal_size": "1GB",
    "timezone": "'UTC'",
    "log_timezone": "'UTC'",
    "log_line_prefix": "'%m [%p] %a '",
    "log_lock_waits": "on",
    "log_checkpoints": "off",
    # Files of the data folder, not of /dev/shm: there they would outlive a killed server.
    "dynamic_shared_memory_type": "mmap",
}
"""Settings that differ from PostgreSQL's defaults; written once, into `postgresql.conf`."""

ROLE_LIMITS: Mapping[str, str] = {
    "statement_timeout": "3s",
    "lock_timeout": "2s",
    "idle_in_transaction_session_timeout": "2s",
}
"""Settings of the daemons' role: stored with the role, so that poolers can't lose them."""

HASHED = 1
"""Iterations of SCRAM. They slow down guesses, but the passwords are random and long. PostgreSQL's
default of 4,096 takes a third of the CPU time of a connection.
"""

_TRUST = re.compile(r"^([^#\n]*\s)trust\b", re.MULTILINE)


def dsn(
    port: int,
    *,
    database: str = ROLE,
    role: str = ROLE,
    host: str = HOST,
    password: str | None = None,
) -> str:
    """Return the URL of a database of the server on this port. `password` must be URL-safe."""
    user = role if password is None else f"{role}:{password}"
    return f"postgresql://{user}@{host}:{port}/{database}"


def environment() -> dict[str, str]:
    """Return the environment without variables that libpq or the server would read."""
    return {key: value for key, value in os.environ.items() if not key.startswith("PG")}


def initialise(
    binaries: PostgresBinaries, data: Path, settings: Mapping[str, str] = SETTINGS
) -> None:
    """Create an empty data folder, unless it exists. An interrupted call leaves none. Raises
    DevError: initdb failed; with its output.
    """
    if data.exists():
        return
    draft = data.with_name(f"{data.name}.new")
    shutil.rmtree(draft, ignore_errors=True)
    made = _ran(
        draft,
        binaries.initdb,
        *("--pgdata", os.fspath(draft)),
        *("--username", ADMIN),
        *("--auth", "trust"),
        *("--encoding", "UTF8"),
        *("--locale", "C"),
        "--no-sync",  # the folder is still empty; the server itself syncs
    )
    if made.returncode != 0:
        raise DevError(
            f"PostgreSQL's data can't be created in {data}: initdb failed",
            "read initdb's output above, and correct the cause",
            evidence=made.stderr.strip() or made.stdout.strip(),
        )
    with (draft / "postgresql.conf").open("a", encoding="utf-8") as conf:
        conf.write("\n# schedctl dev\n")
        conf.writelines(f"{name} = {value}\n" for name, value in settings.items())
    draft.rename(data)


def require_password(binaries: PostgresBinaries, data: Path, password: str) -> None:
    """Make a stopped server reject connections without a password, if it doesn't yet.

    Sets the superuser's password in single-user mode, where no port is open; then replaces each
    `trust` of `pg_hba.conf`. An interrupted call is repeated at the next start. Raises DevError:
    the password can't be set.
    """
    rules = data / "pg_hba.conf"
    text = rules.read_text(encoding="utf-8")
    closed = _TRUST.sub(r"\1scram-sha-256", text)
    if closed == text:
        return
    clean_up(data)
    done = _ran(
        data,
        binaries.postgres,
        *("--single", "-D", os.fspath(data)),
        "postgres",
        given=f"ALTER ROLE {ADMIN} PASSWORD '{_verifier(password)}'\n",
    )
    if done.returncode != 0 or "ERROR:" in done.stderr:
        raise DevError(
            "PostgreSQL rejected the statement that sets the password of its administrator",
            "read PostgreSQL's answer above; to create a new cluster: schedctl dev reset",
            evidence=done.stderr.strip(),
        )
    rules.write_text(closed, encoding="utf-8")


def _verifier(password: str) -> str:
    """Return what PostgreSQL stores of a password (RFC 5803)."""
    salt = os.urandom(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, HASHED)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    texts = [base64.b64encode(part).decode() for part in (salt, stored, server)]
    return "SCRAM-SHA-256${}:{}${}:{}".format(HASHED, *texts)


def _ran(
    data: Path, program: Path, *words: str, given: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*nonroot_prefix(data, program), os.fspath(program), *words],
        input=given,
        cwd=data.parent,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )


def start(
    binaries: PostgresBinaries,
    data: Path,
    port: int,
    log: Path,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> DevProcess:
    """Start the server of an initialized data folder; return before it accepts connections.
    `settings` override those of its file, for this start.
    """
    clean_up(data)
    return spawn(
        [
            *nonroot_prefix(data, binaries.postgres),
            os.fspath(binaries.postgres),
            *("-D", os.fspath(data)),
            *("-h", HOST),
            *("-p", str(port)),
            *("-k", ""),
            *(word for name, value in settings.items() for word in ("-c", f"{name}={value}")),
        ],
        log=log,
        cwd=data.parent,
        env=environment(),
    )


def wait_ready(
    server: DevProcess, port: int, log: Path, timeout: float, password: str | None = None
) -> None:
    """Wait until it accepts connections, after a crash recovery if one is needed. Raises
    ProcessEnded: it ended. NotReady: `timeout` seconds passed. Both have the log's tail.
    """
    if wait_for(lambda: _answers(port, password) or not server.alive(), timeout) and server.alive():
        return
    if not server.alive():
        raise ProcessEnded("PostgreSQL", log)
    raise NotReady(
        "PostgreSQL didn't become ready", f"read the log of PostgreSQL: {log}", evidence=tail(log)
    )


def prepare(
    port: int,
    *,
    database: str = ROLE,
    template: str | None = None,
    host: str = HOST,
    password: str | None = None,
    monitor: bool = True,
) -> str:
    """Create the daemons' role with its limits and a database that it owns; return the DSN.
    `password` is that of both roles; None if the server needs none. `monitor`: the doctor may see
    the WAL and the sessions of other roles.
    """
    admin = dsn(port, database="postgres", role=ADMIN, host=host, password=password)
    with connect(admin) as session, session.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (ROLE,))
        if cursor.fetchone() is None:
            cursor.execute(f"CREATE ROLE {ROLE} LOGIN")
        if monitor:
            cursor.execute(f"GRANT pg_monitor TO {ROLE}")
        if password is not None:
            cursor.execute(f"ALTER ROLE {ROLE} PASSWORD %s", (_verifier(password),))
        for setting, value in ROLE_LIMITS.items():
            cursor.execute(f"ALTER ROLE {ROLE} SET {setting} = %s", (value,))
        cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (database,))
        if cursor.fetchone() is None:
            cursor.execute(creation(session, database, template))
    return dsn(port, database=database, host=host, password=password)


def creation(session: connection, database: str, template: str | None = None) -> str:
    """Return the statement that creates a database of the daemons' role; None: an empty one."""
    origin = f' TEMPLATE "{template}"' if template else ""
    if template and session.server_version >= 150_000:
        origin += " STRATEGY FILE_COPY"  # half the CPU time of a copy through the WAL
    return f'CREATE DATABASE "{database}" OWNER {ROLE}{origin}'


def stop(server: DevProcess | None, data: Path) -> None:
    """Stop the server: fast shutdown, then immediate, then SIGKILL; clean up after it."""
    for process in living_in(data):  # a paused backend would delay the shutdown
        process.send(signal.SIGCONT)
    if server is not None:
        end([server], (signal.SIGINT, 15.0), (signal.SIGQUIT, 5.0))
    clean_up(data)


def clean_up(data: Path) -> None:
    """Remove the leftovers of a killed server: backends, shared memory, the lock file."""
    end(list(living_in(data)))
    lock = data / "postmaster.pid"
    try:
        lines = lock.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return
    # Line 7 has key and id of the System V segment that protects the data folder.
    if len(lines) >= 7 and len(ids := lines[6].split()) == 2:
        key, segment = map(int, ids)
        libc = ctypes.CDLL(None)
        # The id may be reused by another program; the key, from the folder's inode, identifies it.
        if libc.shmget(ctypes.c_int(key), ctypes.c_size_t(0), 0) == segment:
            ipc_rmid = 0
            libc.shmctl(segment, ipc_rmid, None)
    lock.unlink(missing_ok=True)


@contextmanager
def connect(url: str, timeout: int = 5) -> Iterator[connection]:
    """Open a session in autocommit that ignores the PG… variables."""
    import psycopg2

    session = psycopg2.connect(url, sslmode="disable", options="", connect_timeout=timeout)
    with closing(session):
        session.autocommit = True
        yield session


def _answers(port: int, password: str | None) -> bool:
    import psycopg2

    try:
        admin = dsn(port, database="postgres", role=ADMIN, password=password)
        with connect(admin, timeout=2):
            return True
    except psycopg2.OperationalError:
        return False
