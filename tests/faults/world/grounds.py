"""Resources of a world on this machine, and the removal of what dead owners left.

A world has a key of a few letters, with which every namespace and link of it begins, a folder under
`/run/schedd-faults` that says who owns it, and a subnet. Two worlds never share any of these.

- The owner is a process known by pid and birth: a reused pid owns nothing.
- `claim` first sweeps the grounds of dead owners: their processes (those inside their namespaces
  and those that live in their folder), mounts, namespaces, links. So a killed pytest leaves no more
  than the next one clears away.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from schedctl.dev.servers.processes import DevProcess, end, find, living_in

HOME = Path("/run/schedd-faults")
NETWORKS = range(1, 250)
PREFIX = "sf"


@dataclass(frozen=True, slots=True)
class Grounds:
    """`key`: prefix of all names. `net`: hosts live in 10.213.<net>.0/24. `work`: data, sockets."""

    key: str
    net: int
    work: Path

    def address(self, number: int) -> str:
        """The address of host `number`."""
        return f"10.213.{self.net}.{number}"


def claim() -> Grounds:
    """New grounds of this process; those of the dead are swept first."""
    HOME.mkdir(exist_ok=True)
    with _locked():
        sweep()
        taken = {json.loads(file.read_text())["net"] for file in HOME.glob("*.json")}
        net = next(number for number in NETWORKS if number not in taken)
        key = f"{PREFIX}{net}"
        me = find(os.getpid())
        assert me is not None
        work = Path(tempfile.mkdtemp(prefix=f"schedd-faults-{net}-"))
        record = {"net": net, "work": str(work), "pid": me.pid, "born": me.born}
        (HOME / f"{key}.json").write_text(json.dumps(record))
    return Grounds(key, net, work)


def release(grounds: Grounds) -> None:
    """Clear everything of these grounds away."""
    with _locked():
        _clear(grounds)


def sweep() -> list[str]:
    """Clear away what dead owners left; answers the keys of their grounds."""
    swept = []
    for file in HOME.glob("*.json"):
        record = json.loads(file.read_text())
        if not DevProcess(record["pid"], record["born"]).alive():
            _clear(Grounds(file.stem, record["net"], Path(record["work"])))
            swept.append(file.stem)
    return swept


def run(*argv: str, check: bool = True) -> str:
    """Run a program of the system's; answers what it printed."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: exit {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def disk(folder: Path, megabytes: int) -> None:
    """Make the folder a small disk of its own; it goes with the grounds."""
    folder.mkdir()
    run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=755", "tmpfs", str(folder))


def _clear(grounds: Grounds) -> None:
    names = [
        line.split()[0]
        for line in run("ip", "netns", "list").splitlines()
        if line.startswith(f"{grounds.key}-")
    ]
    inside = {int(pid) for name in names for pid in run("ip", "netns", "pids", name).split()}
    found = {process for pid in inside if (process := find(pid)) is not None}
    end([*found, *_living_below(grounds.work)])
    for target in _mounts_below(grounds.work):
        run("umount", "--lazy", target, check=False)
    for name in names:
        run("ip", "netns", "del", name)
    run("ip", "link", "del", f"{grounds.key}-root", check=False)
    shutil.rmtree(grounds.work, ignore_errors=True)
    (HOME / f"{grounds.key}.json").unlink(missing_ok=True)


def _living_below(work: Path) -> Iterator[DevProcess]:
    for folder in (work, *work.glob("*"), *work.glob("*/*")):
        if folder.is_dir():
            yield from living_in(folder)


def _mounts_below(work: Path) -> list[str]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [line.split()[1] for line in lines if line.split()[1].startswith(f"{work}/")]


@contextmanager
def _locked() -> Iterator[None]:
    with (HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
