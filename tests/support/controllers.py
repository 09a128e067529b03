"""A place for workers whose attempts the kernel can limit, as far as this host has one.

Version 1: wherever the test itself stands. Version 2: a cgroup of the test's own, at the top, that
is marked as delegated, as systemd marks that of a unit with `Delegate=yes`.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from support.wait import WAIT_TIMEOUT, wait_until
from workerd.process import cgroups

NAMES = ("memory", "pids")


def _top() -> Path | None:
    """The highest cgroup of version 2 that passes both controllers on, and may be written."""
    own = cgroups.own()
    for folder in reversed([] if own is None else [own, *own.parents]):
        try:
            passed = (folder / "cgroup.subtree_control").read_text().split()
        except OSError:  # above where they are mounted
            continue
        if set(NAMES) <= set(passed) and cgroups.writable(folder):
            return folder
    return None


def version() -> int:
    """Of the cgroups that have both controllers here; 0: none that may be used."""
    if cgroups.own() is None:  # nothing can be born in one
        return 0
    if all((own := cgroups.own(name)) and cgroups.writable(own) for name in NAMES):
        return 1
    return 2 if _top() is not None else 0


@contextlib.contextmanager
def delegated() -> Iterator[Path | None]:
    """Yield the cgroup in which a worker must start; None: the cgroup of the test."""
    top = _top() if version() == 2 else None
    if top is None:
        yield None
        return
    folder = top / f"test-{uuid.uuid4()}"
    folder.mkdir()
    os.setxattr(folder, "user.delegate", b"1")
    try:
        yield folder
    finally:
        wait_until(lambda: _removed(folder), WAIT_TIMEOUT, f"{folder} to be empty")


def _removed(folder: Path) -> bool:
    for below, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):
            Path(below).rmdir()
    return not folder.exists()


def remaining(mark: str) -> list[Path]:
    """Return the cgroups of a worker that still exist, by its mark, in any hierarchy."""
    places = [cgroups.own(name) for name in ("", *NAMES)]
    name = cgroups.NAME.format(mark)
    return [each for place in places if place for each in place.glob(f"{name}*")]
