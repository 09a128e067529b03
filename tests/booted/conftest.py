"""A booted system for all tests: installed once, in the order of the tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from booted.machine import Machine, lacking_here


@pytest.fixture(scope="session")
def machine() -> Iterator[Machine]:
    """A Debian with PostgreSQL, etcd, a member and a worker by the shipped units."""
    lack = lacking_here()
    if lack and os.environ.get("BOOTED_REQUIRED"):
        pytest.fail(lack)
    if lack:
        pytest.skip(lack)
    with Machine() as machine:
        install(machine)
        yield machine


def install(machine: Machine) -> None:
    """As docs/operations/systemd.md says."""
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/opt/wheels"}
    done = machine.run("/opt/source/deploy/systemd/install", env=pip, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "systemctl enable --now schedd workerd" in done.stdout
    for role in ("schedd", "owner"):
        machine.must(f"runuser -u postgres -- createuser {role}")
    machine.must("runuser -u postgres -- createdb -O schedd schedd")
    machine.must("runuser -u schedd -- /opt/schedd/bin/schedd migrate")
    machine.must("systemctl enable --now etcd postgresql schedd workerd", timeout=120)
