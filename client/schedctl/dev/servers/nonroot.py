"""How to run PostgreSQL, which refuses root, whoever we are.

As root, in this order:

1. in a user namespace where root is shown as an ordinary user (`unshare --map-user`). To the file
   system it stays root, so data folders under a closed home work, and no mode is changed;
2. where namespaces are forbidden (containers, and any chroot), as `nobody` by `setpriv`, which
   keeps the one capability needed to pass closed parent folders.

`unshare` without `--fork`, and `setpriv`, exec the program: the pid we start is the server's own.
The user it is shown as must have a line in the password file, else initdb refuses.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Iterator
from pathlib import Path

from schedctl.dev.errors import DevError


def command_prefix(data: Path, program: Path) -> list[str]:
    """What to put before `program`, which is `initdb` or `postgres`, for this data folder (which
    need not exist yet).

    Raises:
        DevError: we are root and no way leads to an unprivileged process that can run it.
    """
    owner = data.stat().st_uid if data.exists() else None
    for prefix in _ways(os.geteuid(), owner):
        if not prefix or _works(prefix):
            break
    else:
        raise DevError(
            "PostgreSQL refuses to run as root, and neither unshare nor setpriv may change that"
            " here",
            "run schedctl as another user, or name a running server with --postgres DSN",
        )
    if prefix[:1] == ["setpriv"] and not open_to_all(program):
        # The capability would let it pass; but PostgreSQL asks access(2), which knows none.
        raise DevError(
            f"PostgreSQL lies where only root may go ({program.parent}), and this machine forbids"
            " user namespaces",
            "install PostgreSQL by the system's packages, or open the environment's folder",
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
    """Whether any user may go there. What isn't there hides nothing."""
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
