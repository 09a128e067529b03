"""Faults drawn by seed, and jobs that write down themselves that they ran."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from faults.history import ProbeEvent
from faults.nemesis.catalogue import KINDS, draw
from faults.probes import MIX, SCRIPT, DatabaseProbe


def test_the_same_seed_draws_the_same_faults() -> None:
    assert draw(7, 60) == draw(7, 60)
    assert draw(7, 60) != draw(8, 60)


def test_a_longer_plan_begins_like_the_shorter_one() -> None:
    assert draw(3, 50)[:20] == draw(3, 20)


def test_every_kind_appears_once_before_any_appears_twice() -> None:
    plan = draw(11, 2 * len(KINDS))
    for lap in (plan[: len(KINDS)], plan[len(KINDS) :]):
        assert sorted(each.fault for each in lap) == sorted(KINDS)


def test_every_drawn_fault_keeps_to_its_kind() -> None:
    for planned in draw(5, 200):
        kind = KINDS[planned.fault]
        assert planned.target in kind.targets
        assert kind.lasts[0] <= planned.seconds <= kind.lasts[1]


def run_probe(
    folder: Path, probe: DatabaseProbe, *, at: str, attempt: int
) -> tuple[int, list[ProbeEvent]]:
    environment = {
        "SCHEDD_RUN_ID": "r1",
        "SCHEDD_JOB": probe.name,
        "SCHEDD_SCHEDULED_AT": at,
        "SCHEDD_FENCING_TOKEN": "42",
        "SCHEDD_ATTEMPT": str(attempt),
        "SCHEDD_WORKER": "w1",
    }
    shell = probe.spec(folder)["shell"]
    done = subprocess.run(
        shell["argv"], env={"PATH": os.environ["PATH"], **environment, **shell["env"]}, timeout=20
    )
    lines = (folder / "w1.jsonl").read_text().splitlines()
    return done.returncode, [ProbeEvent(**json.loads(line)) for line in lines]


def test_a_probe_writes_its_start_and_its_end(tmp_path: Path) -> None:
    code, (start, end) = run_probe(
        tmp_path, DatabaseProbe("p"), at="2026-11-21T12:00:04Z", attempt=1
    )
    assert code == 0
    assert (start.event, end.event) == ("start", "end")
    assert (start.run, start.job, start.token, start.worker) == ("r1", "p", 42, "w1")
    assert start.nominal == "2026-11-21T12:00:04Z"
    assert end.exit == 0
    assert start.at <= end.at


@pytest.mark.parametrize(
    ("at", "attempt", "code"),
    [
        ("2026-11-21T12:00:04Z", 1, 3),
        ("2026-11-21T12:00:04Z", 2, 0),
        ("2026-11-21T12:00:05Z", 1, 0),
        ("2026-11-21T12:00:14.000Z", 1, 3),
    ],
)
def test_a_failing_probe_fails_each_tenth_second_at_its_first_attempt(
    tmp_path: Path, at: str, attempt: int, code: int
) -> None:
    found, events = run_probe(
        tmp_path, DatabaseProbe("p", fails_first=True), at=at, attempt=attempt
    )
    assert found == code
    assert events[-1].exit == code


def test_a_killed_probe_has_written_its_start(tmp_path: Path) -> None:
    script = SCRIPT.replace("say end", "kill -9 $$; say end")
    probe = DatabaseProbe("p")
    shell = probe.spec(tmp_path)["shell"]
    environment = dict.fromkeys(("RUN_ID", "JOB", "SCHEDULED_AT", "WORKER"), "x")
    environ = {f"SCHEDD_{name}": value for name, value in environment.items()}
    environ |= {"SCHEDD_FENCING_TOKEN": "1", "SCHEDD_ATTEMPT": "1", **shell["env"]}
    subprocess.run(["/bin/bash", "-c", script], env=environ, timeout=20, check=False)
    (line,) = (tmp_path / "x.jsonl").read_text().splitlines()
    assert json.loads(line)["event"] == "start"


def test_the_mix_meets_twenty_instants_within_two_seconds() -> None:
    each_second = sum(probe.cron == "* * * * * *" for probe in MIX)
    assert 2 * each_second + (len(MIX) - each_second) >= 20
    assert len({probe.name for probe in MIX}) == len(MIX)
