"""Run PostgreSQL, which rejects root, as any user.

As root, in this order:

1. in a user namespace that maps root to an ordinary user (`unshare --map-user`). The file system
   still sees root, so data folders under a closed home work, and no mode is changed;
2. where namespaces are forbidden (containers, and any chroot), as an unprivileged user by
   `setpriv`, which keeps the one capability needed to pass closed parent folders.

`unshare` without `--fork`, and `setpriv`, exec the program: its pid is the server's own. The mapped
user must have an entry in the password file, else initdb fails.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Iterator
from pathlib import Path

from schedctl.dev.errors import DevError


def command_prefix(data: Path, program: Path) -> list[str]:
    """Return the words to put before `program` (`initdb` or `postgres`) for this data folder.

    The folder needn't exist yet.

    Raises:
        DevError: this process is root and can't start an unprivileged process that runs it.
    """
    owner = data.stat().st_uid if data.exists() else None
    for prefix in _ways(os.geteuid(), owner):
        if not prefix or _works(prefix):
            break
    else:
        raise DevError(
            "PostgreSQL can't run as root, and unshare and setpriv aren't permitted here",
            "run schedctl as another user, or name a running server: --postgres DSN",
        )
    if prefix[:1] == ["setpriv"] and not open_to_all(program):
        # The capability would suffice, but PostgreSQL calls access(2), which ignores it.
        raise DevError(
            f"PostgreSQL is in a folder that only root can read ({program.parent}), and user"
            " namespaces are forbidden here",
            "install PostgreSQL from the system's packages, or make the folder readable",
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
        return pwd.getpwnam("nobody")
    except KeyError:
        return next(entry for entry in pwd.getpwall() if entry.pw_uid != 0)
