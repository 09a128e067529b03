"""Cgroups of a worker: where they are, and when there are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from workerd.process import cgroups
from workerd.process.cgroup_spawn import Launcher

UNIFIED = "30 23 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
HYBRID = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
BOTH = f"""\
{HYBRID}\
42 31 0:39 / /sys/fs/cgroup/cpu,memory rw,relatime - cgroup cgroup rw,cpu,memory
"""
OWN = "9:name=systemd:/elsewhere\n4:memory:/other\n0::/system.slice/workerd.service\n"


@pytest.mark.parametrize(
    ("mounts", "own", "expected"),
    [
        (UNIFIED, OWN, "/sys/fs/cgroup/system.slice/workerd.service"),
        (HYBRID, OWN, "/sys/fs/cgroup/unified/system.slice/workerd.service"),
        (HYBRID, "0::/\n", "/sys/fs/cgroup/unified"),
        (UNIFIED.replace(" / /", " /system.slice /"), OWN, "/sys/fs/cgroup/workerd.service"),
        (UNIFIED.replace("/sys/fs/cgroup", r"/a\040b"), "0::/\n", "/a b"),
    ],
    ids=["unified", "hybrid", "root", "part-mounted", "blank"],
)
def test_the_own_cgroup_is_found_below_its_mount(mounts: str, own: str, expected: str) -> None:
    assert cgroups.place(mounts, own) == Path(expected)


def test_a_controller_that_version_1_has_is_found_in_its_own_hierarchy() -> None:
    own = "7:cpu,memory:/a/b\n9:name=systemd:/elsewhere\n0::/c\n"
    assert cgroups.place(BOTH, own, "memory") == Path("/sys/fs/cgroup/cpu,memory/a/b")
    assert cgroups.place(BOTH, own) == Path("/sys/fs/cgroup/unified/c")
    assert cgroups.place(BOTH, own, "pids") is None
    assert cgroups.place(HYBRID, own, "memory") is None


@pytest.mark.parametrize(
    ("mounts", "own"),
    [
        (HYBRID.replace("cgroup2", "tmpfs"), OWN),
        (UNIFIED, "4:memory:/other\n"),
        (UNIFIED.replace(" / /", " /user.slice /"), OWN),
    ],
    ids=["not-mounted", "none", "mounted-elsewhere"],
)
def test_without_version_2_there_is_no_cgroup(mounts: str, own: str) -> None:
    assert cgroups.place(mounts, own) is None


def test_a_launcher_that_cannot_spawn_fails_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="can't start a process in a cgroup"):
        Launcher(tmp_path / "workerd-m", "m")
    with pytest.raises(OSError, match="No such file"):
        Launcher(tmp_path / "missing" / "workerd-m", "m")
    assert not [*tmp_path.iterdir()]


def test_only_a_folder_named_after_the_mark_is_emptied(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    assert cgroups.clear(tmp_path / "precious", "mark") == 0
    assert (tmp_path / "precious").exists()
