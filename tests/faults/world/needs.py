"""Requirements of a world that this machine lacks, in words."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from schedctl.dev.errors import MissingProgram
from schedctl.dev.servers import binaries

PROGRAMS = {
    "ip": "iproute2",
    "ss": "iproute2",
    "nsenter": "util-linux",
    "sysctl": "procps",
    "bash": "bash",
}
FAKETIME = "/usr/lib/*/faketime/libfaketimeMT.so.1"


def lacking_here(*, clocks: bool = False) -> str | None:
    """Return why no world can be built here, one with `clocks` that can be moved; None if
    one can.
    """
    if clocks and (lack := no_faketime_here()):
        return lack
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
    """Return why no network can be laid here; None if one can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program, package in PROGRAMS.items():
        if shutil.which(program) is None:
            return f"{program} is missing: apt-get install {package}"
    tried = subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False)
    if tried.returncode:
        return f"no network namespace can be made: {tried.stderr.decode().strip()}"
    return None


def no_faketime_here() -> str | None:
    """Return why no clock can be moved here; None if one can."""
    return None if _faketimes() else "libfaketime is missing: apt-get install faketime"


def faketime() -> Path:
    """The library that moves a process's clock.

    Raises:
        RuntimeError: it isn't installed; says how to.
    """
    if lack := no_faketime_here():
        raise RuntimeError(lack)
    return _faketimes()[0]


def _faketimes() -> list[Path]:
    return sorted(Path("/").glob(FAKETIME.lstrip("/")))


if __name__ == "__main__":
    import sys

    sys.exit(lacking_here())
