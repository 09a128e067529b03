"""What this machine lacks for a world, in words."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from schedctl.dev import binaries
from schedctl.dev.errors import MissingProgram

PROGRAMS = {
    "ip": "iproute2",
    "ss": "iproute2",
    "nsenter": "util-linux",
    "sysctl": "procps",
    "bash": "bash",
}
FAKETIME = "/usr/lib/*/faketime/libfaketimeMT.so.1"


def lacking_here() -> str | None:
    """What keeps a world from being built here; None when nothing does."""
    if lack := no_hosts_here():
        return lack
    try:
        programs = binaries.find_postgres()
        binaries.find_etcd()
    except MissingProgram as missing:
        return str(missing)
    library = "lib/**/test_decoding.so"
    if not any(programs.postgres.parents[1].glob(library)):
        return (
            f"PostgreSQL in {programs.postgres.parent} has no test_decoding, by which commits are"
            " read in their order: apt-get install postgresql"
        )
    return None


def no_hosts_here() -> str | None:
    """What keeps a network from being laid here; None when nothing does."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program, package in PROGRAMS.items():
        if shutil.which(program) is None:
            return f"{program} is missing: apt-get install {package}"
    tried = subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False)
    if tried.returncode:
        return f"no network namespace can be made: {tried.stderr.decode().strip()}"
    return None


def faketime() -> Path:
    """The library that moves a process's clock.

    Raises:
        RuntimeError: it isn't installed; says how to.
    """
    found = sorted(Path("/").glob(FAKETIME.lstrip("/")))
    if not found:
        raise RuntimeError("libfaketime is missing: apt-get install faketime")
    return found[0]


if __name__ == "__main__":
    import sys

    sys.exit(lacking_here())
