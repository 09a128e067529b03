"""The process in which programs are born into cgroups, when it isn't well."""

from __future__ import annotations

import contextlib
import os
import signal
import uuid
from collections.abc import Iterator

import pytest

from workerd import births, cgroups
from workerd.births import Launcher

pytestmark = pytest.mark.skipif(
    (place := cgroups.tree_of("x")) is None or not os.access(place.parent, os.W_OK),
    reason="no cgroups of version 2 that may be written",
)


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    mark = str(uuid.uuid4())
    tree = cgroups.tree_of(mark)
    assert tree is not None
    launcher = Launcher(tree, mark)
    yield launcher
    launcher.close()


def test_a_birth_that_was_told_too_late_isnt_taken_for_the_next_one(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(births, "PATIENCE", births.PATIENCE_AT_START)
    launcher.take()  # the one of the trial
    stands_still = launcher._process.pid
    os.kill(stands_still, signal.SIGSTOP)
    launcher._socket.settimeout(0.1)
    with pytest.raises(OSError, match="no birth in a cgroup"):
        launcher.take()
    with contextlib.suppress(ProcessLookupError):
        os.kill(stands_still, signal.SIGCONT)
    assert launcher.take().reusable(), "it is told by its own number"
