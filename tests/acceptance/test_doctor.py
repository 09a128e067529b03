"""`schedctl cluster doctor` on real processes: what is well is told, and what isn't is found."""

from __future__ import annotations

import json
from typing import Any

from support.cluster import DevCluster

Found = dict[tuple[str, str, str | None], Any]


def looked(cluster: DevCluster, *, code: int) -> Found:
    """What it says, and that it exits so."""
    done = cluster.schedctl("cluster", "doctor", "-o", "json")
    assert done.returncode == code, done.stdout + done.stderr
    return {(one["area"], one["check"], one["subject"]): one for one in json.loads(done.stdout)}


def test_a_healthy_cluster_has_nothing_bad_and_every_area_was_looked_at(
    rough: DevCluster,
) -> None:
    found = looked(rough, code=0)
    assert {area for area, _, _ in found} == {
        "etcd",
        "postgres",
        "cluster",
        "members",
        "clocks",
        "workers",
    }
    names = {member["name"] for member in rough.record["members"]}
    for area, check in (("members", "answers"), ("clocks", "cluster time")):
        about = {at[2]: one for at, one in found.items() if at[:2] == (area, check)}
        assert set(about) == names
        assert {one["severity"] for one in about.values()} == {"OK"}
    spools = [one for at, one in found.items() if at[:2] == ("workers", "spool")]
    assert len(spools) == len(rough.record["workers"])
    assert all("MiB free" in one["what"] for one in spools)
    # The embedded etcd is one of those that may corrupt, and stands alone: that is said.
    assert all(one["why"] and one["remedy"] for one in found.values() if one["severity"] != "OK")


def test_a_pause_is_found_with_its_note_and_what_ends_it(rough: DevCluster) -> None:
    rough.schedctl("cluster", "pause", "--note", "doctor's test").check_returncode()
    try:
        paused = looked(rough, code=0)["cluster", "pause", None]
    finally:
        rough.schedctl("cluster", "resume").check_returncode()
    assert paused["severity"] == "WARN"
    assert "doctor's test" in paused["what"]
    assert paused["remedy"] == "`schedctl cluster resume`"
