"""The resources of daemons, before and after the faults."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from faults.history import Resource
from faults.resources import held, spooled_in


def sample(who: str, *, rss: int, connections: int | None, spool: int | None) -> Resource:
    return Resource(1.0, who, 7, rss, 20, 5, connections, spool, "before")


def test_resources_are_summed_over_all_daemons_of_a_kind() -> None:
    before = [
        sample("m1", rss=100, connections=4, spool=None),
        sample("m2", rss=110, connections=5, spool=None),
        sample("w1", rss=50, connections=None, spool=0),
    ]
    after = [
        sample("m1", rss=120, connections=4, spool=None),
        sample("m2", rss=110, connections=3, spool=None),
        sample("w1", rss=50, connections=None, spool=64),
    ]
    assert held(before, after) == {
        "members": {
            "processes": 2,
            "rss_kib": [210, 230],
            "fds": [40, 40],
            "threads": [10, 10],
            "connections": [9, 7],
        },
        "workers": {
            "processes": 1,
            "rss_kib": [50, 50],
            "fds": [20, 20],
            "threads": [5, 5],
            "spool_bytes": [0, 64],
        },
    }


def test_an_unreadable_resource_is_not_reported() -> None:
    before = [sample("m1", rss=100, connections=4, spool=None)]
    after = [sample("m1", rss=100, connections=None, spool=None)]
    assert "connections" not in held(before, after)["members"]
    assert held(before, []) == {}


def test_the_database_is_a_kind_of_its_own() -> None:
    database = replace(sample("pg", rss=9, connections=None, spool=None), heap_bytes=8, dead_rows=0)
    figures = held([database], [replace(database, heap_bytes=16)])
    assert figures["database"]["heap_bytes"] == [8, 16]
    assert figures["database"]["dead_rows"] == [0, 0]


def test_a_result_that_leaves_the_spool_during_the_count_is_not_counted(tmp_path: Path) -> None:
    """The result is acknowledged between listing and look: here it is a name without a file."""
    (tmp_path / "000000000001.results").write_bytes(b"x" * 64)
    (tmp_path / "000000000002.results").symlink_to(tmp_path / "gone")

    assert spooled_in(tmp_path) == 64
