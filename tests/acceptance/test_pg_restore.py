"""`pg_restore --clean` under running members: they become not ready, say why, and return."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from acceptance.conftest import SHORT_LEASES, pids
from schedctl.dev.servers import binaries, postgres
from support.cluster import DevCluster, dev_cluster
from support.wait import PROCESS_POLL, WAIT_TIMEOUT, wait_until

OTHER = "The database's schema isn't the one this schedd needs"
SECTIONS = {
    "pre-data": ("A row that every database of schedd has is missing", OTHER),
    "data": (OTHER,),
}
"""Each part of a restore, and what members say after it: without rows and without constraints, the
first statement that fails names one or the other. A large database takes hours for each part.
"""


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[DevCluster]:
    options = {"members": 2, "workers": 1, "overrides": SHORT_LEASES}
    with dev_cluster(request.session, **options) as made:
        yield made


def readiness(cluster: DevCluster) -> list[tuple[int, str]]:
    answers = [cluster.get(member["name"], "/readyz") for member in cluster.record["members"]]
    return [(each.status, each.body.decode()) if each else (0, "") for each in answers]


def test_members_are_not_ready_while_pg_restore_replaces_the_tables_and_return_after_it(
    cluster: DevCluster, tmp_path: Path
) -> None:
    role, password = postgres.ADMIN, cluster.password
    dsn = postgres.dsn(cluster.sql_port, database="schedd", role=role, password=password)
    programs, dump = binaries.find_postgres().initdb, tmp_path / "dump"

    def run(program: str, *words: str) -> None:
        line = [str(programs.with_name(program)), *words]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr

    cluster.schedctl("job", "create", "tick", "--every", "1s", "--", "true").check_returncode()
    before = pids(cluster)
    run("pg_dump", "--format=custom", f"--file={dump}", dsn)

    clean = ["--clean", "--if-exists"]
    for section, causes in SECTIONS.items():
        run("pg_restore", *clean, f"--section={section}", f"--dbname={dsn}", str(dump))
        wait_until(
            lambda causes=causes: all(  # type: ignore[misc]
                status == 503 and any(cause in said for cause in causes)
                for status, said in readiness(cluster)
            ),
            WAIT_TIMEOUT,
            f"every /readyz to say one of {causes}",
        )
        clean = []
    run("pg_restore", "--section=post-data", f"--dbname={dsn}", str(dump))

    wait_until(
        lambda: [status for status, _ in readiness(cluster)] == [200, 200],
        WAIT_TIMEOUT,
        "readiness",
    )
    done = cluster.schedctl("submit", "--wait", "--", "true")
    assert done.returncode == 0, done.stderr
    newest = cluster.json("run", "list", "--job", "tick")[0]["scheduledAt"]
    wait_until(
        lambda: any(
            run["scheduledAt"] > newest and run["state"] == "SUCCEEDED"
            for run in cluster.json("run", "list", "--job", "tick")
        ),
        WAIT_TIMEOUT,
        "the job to fire as before",
        every=PROCESS_POLL,
    )
    assert pids(cluster) == before
