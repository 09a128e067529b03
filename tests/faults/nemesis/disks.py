"""Faults of disks: full. Each daemon that writes has a small disk of its own (a tmpfs)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from faults.nemesis.journal import Fault, Journal, NoEffect
from faults.world.grounds import disk, run
from faults.world.service import Service
from faults.world.world import World
from support.wait import wait_until

FILLER = ".nemesis"
LOG_DISK = 1
"""Megabytes."""
FELT_WITHIN = 15.0


@contextmanager
def full(
    journal: Journal, folder: Path, felt: Callable[[], object], *, last_page: Path | None = None
) -> Iterator[Fault]:
    """Not a byte more fits on the disk of this folder; seen by `felt`: a write was refused.

    A file that is there may still grow to the end of its last page; `last_page` names one that
    shall not.
    """
    if not os.path.ismount(folder):
        raise NoEffect(f"{folder} is no disk of its own")
    filler = folder / FILLER
    with journal.fault("disk full", folder.name) as fault:
        try:
            written = _fill(filler)
            if last_page is not None:
                written += _fill(last_page)
            fault.effect_of(felt, FELT_WITHIN, f"ENOSPC to be met, {written} bytes written")
            yield fault
        finally:
            fault.end()
            filler.unlink(missing_ok=True)


@contextmanager
def log_disk(world: World, service: Service) -> Iterator[Path]:
    """Restart this daemon with its log on a small disk of its own; undone at the end."""
    folder = world.work / f"log-{service.name}"
    disk(folder, LOG_DISK)
    usual = service.log
    service.log = folder / usual.name
    _restart(service)
    try:
        yield folder
    finally:
        service.log = usual
        _restart(service)
        run("umount", "--lazy", str(folder))
        folder.rmdir()


def refuses(file: Path) -> bool:
    """Whether not a byte more can be appended to this file."""
    with file.open("ab", buffering=0) as end:
        try:
            end.write(b"\n")
        except OSError as error:
            return error.errno == errno.ENOSPC
    return False


def _restart(service: Service) -> None:
    service.terminate(20)
    service.start()
    wait_until(service.ready, 45, f"{service.name} to be ready")


def _fill(filler: Path) -> int:
    written = 0
    with filler.open("ab", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    written += file.write(b"\0" * size)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
    return written
