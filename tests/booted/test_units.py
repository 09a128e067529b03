"""The units as shipped: installed, started, killed, hung, restarted under load, booted again."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest

from booted.machine import Machine
from support.wait import WAIT_TIMEOUT, wait_until

UNITS = ("schedd", "workerd")
NOTED = "/var/lib/schedd/results/noted"
NOTES = f"echo $SCHEDD_SCHEDULED_AT >> {NOTED}"
"""Command of each run of `steady`: a scheduled time twice in its file is a run that ran twice."""


def schedctl(machine: Machine, command: str) -> Any:
    """Return the output of a command; options come before the program that they belong to."""
    asked, dashes, program = command.partition(" -- ")
    return json.loads(machine.must(f"schedctl {asked} -o json{dashes}{program}"))


def pid_of(machine: Machine, unit: str) -> int:
    return int(machine.tell(f"systemctl show -P MainPID {unit}"))


def score_of(machine: Machine, unit: str) -> float:
    """From 0, closed, to 10, open to all."""
    output = machine.must(f"systemd-analyze security --no-pager {unit} || true")
    found = re.search(r"exposure level for \S+: ([\d.]+)", output)
    assert found, output
    return float(found[1])


@contextmanager
def drop_in(machine: Machine, name: str) -> Iterator[None]:
    """The worker runs under this example."""
    folder = "/etc/systemd/system/workerd.service.d"
    example = f"/opt/source/deploy/systemd/workerd.service.d/{name}.conf.example"
    machine.must(f"install -D -m 644 {example} {folder}/{name}.conf")
    restarted = machine.run("systemctl daemon-reload && systemctl restart workerd")
    try:
        assert restarted.returncode == 0, machine.tell("journalctl -u workerd -n 30 --no-pager")
        yield
    finally:
        machine.must(f"rm {folder}/{name}.conf && systemctl daemon-reload")
        machine.must("systemctl restart workerd")


def await_another(machine: Machine, unit: str, pid: int, within: float) -> None:
    def another() -> bool:
        state = machine.tell(f"systemctl is-active {unit}").strip()
        return state == "active" and pid_of(machine, unit) not in (0, pid)

    wait_until(another, within, f"{unit} to be started again")


def reloaded(machine: Machine, unit: str, said: str) -> None:
    """Reload it: its journal has this message once more, and the unit stays active."""

    def times_said() -> int:
        return machine.tell(f"journalctl -u {unit} -o cat --no-pager").count(said)

    before = times_said()
    machine.must(f"systemctl reload {unit}")
    wait_until(lambda: times_said() > before, WAIT_TIMEOUT, f"{unit} to say: {said}")
    wait_until(
        lambda: machine.tell(f"systemctl is-active {unit}").strip() == "active",
        WAIT_TIMEOUT,
        f"{unit} to be done with it",
    )


def started(machine: Machine, job: str) -> Counter[str]:
    """How often a run of each instant ended well; nothing that failed is among them."""
    runs = schedctl(machine, f"run list --job {job}")
    return Counter(run["scheduledAt"] for run in runs if run["state"] == "SUCCEEDED")


def test_only_the_daemon_can_read_its_settings(machine: Machine) -> None:
    listing = machine.must("stat -c '%n %a %U %G' /etc/schedd/* /var/lib/schedd/results")
    assert listing.splitlines() == [
        "/etc/schedd/schedd.env 600 root root",
        "/etc/schedd/schedd.toml 640 root schedd",
        "/etc/schedd/workerd.env 600 root root",
        "/etc/schedd/workerd.toml 640 root workerd",
        "/var/lib/schedd/results 770 schedd schedd-results",
    ]
    assert machine.run("runuser -u workerd -- cat /etc/schedd/schedd.toml").returncode == 1


def test_the_units_have_low_exposure(machine: Machine, figure: Any) -> None:
    scores = {unit: score_of(machine, unit) for unit in UNITS}
    for unit in UNITS:
        figure(f"{unit}.service scores {scores[unit]} in systemd-analyze security")
    assert scores["schedd"] <= 2.0
    assert scores["workerd"] <= 6.7, "what else is closed its jobs would inherit"


def test_both_daemons_report_their_status(machine: Machine) -> None:
    for unit, says in (("schedd", "gRPC 127.0.0.1:7420"), ("workerd", "worker booted")):
        shown = machine.must(f"systemctl show -p StatusText,ActiveState,NRestarts {unit}")
        properties = dict(line.split("=", 1) for line in shown.splitlines())
        assert (properties["ActiveState"], properties["NRestarts"]) == ("active", "0")
        assert says in properties["StatusText"]
    assert json.loads(machine.must("curl -sf http://127.0.0.1:7421/readyz"))["status"] == "ready"


def test_a_run_is_contained_and_its_whole_log_is_read_and_removed_by_the_member(
    machine: Machine,
) -> None:
    script = (
        "id -un; grep ^0:: /proc/self/cgroup; grep NoNewPrivs /proc/self/status; umask; seq 100000"
    )
    lines = machine.must(f"schedctl submit --wait --exit-status -- sh -c '{script}'").splitlines()
    assert lines[0] == "workerd"
    assert "workerd.service/workerd-" in lines[1], "a cgroup for the attempt"
    assert lines[2].split() == ["NoNewPrivs:", "1"]
    assert lines[3] == "0022", "as under cron"
    run = schedctl(machine, "run list --limit 1")[0]["runId"]
    assert machine.must(f"schedctl run logs {run}").endswith("99999\n100000\n"), "all of it"
    kept = machine.must(f"find /var/lib/schedd/results -path '*{run}*' -type f").split()
    assert len(kept) == 1
    machine.must(f"runuser -u schedd -- rm {kept[0]}")
    written = machine.run("schedctl submit --wait --exit-status -- touch /usr/x /etc/x /home/x")
    assert written.returncode == 1


def test_a_killed_or_hung_daemon_is_restarted_and_no_scheduled_time_is_lost(
    machine: Machine, figure: Any
) -> None:
    machine.must(f"schedctl job create steady --every 1s -- sh -c '{NOTES}'")
    wait_until(lambda: len(started(machine, "steady")) > 2, WAIT_TIMEOUT, "the first runs")
    for unit in UNITS:
        pid = pid_of(machine, unit)
        machine.must(f"kill -9 {pid}")
        await_another(machine, unit, pid, 30)
    hung = pid_of(machine, "schedd")
    began = time.monotonic()
    machine.must(f"kill -STOP {hung}")
    await_another(machine, "schedd", hung, 60)
    figure(f"a member that hangs is started again after {time.monotonic() - began:.0f} s")
    await_every_second(machine)
    assert doubled(machine) == {}
    assert unfinished(machine) == []


def test_a_member_starts_once_etcd_answers_and_reports_its_wait(
    machine: Machine,
) -> None:
    machine.must("systemctl stop etcd")
    machine.must("systemctl restart --no-block schedd")
    wait_until(lambda: "waiting for etcd" in status_of(machine), WAIT_TIMEOUT, "what it waits for")
    assert machine.tell("systemctl show -P ActiveState schedd").strip() == "activating"
    machine.must("systemctl start etcd")
    wait_until(
        lambda: machine.tell("systemctl show -P ActiveState schedd").strip() == "active",
        WAIT_TIMEOUT,
        "it to be started",
    )
    wait_until(lambda: "ready" not in status_of(machine), WAIT_TIMEOUT, "it to be ready")


def status_of(machine: Machine) -> str:
    return machine.tell("systemctl show -P StatusText schedd")


def test_a_restart_under_load_neither_loses_nor_repeats_runs(machine: Machine) -> None:
    for unit in (*UNITS, *UNITS):
        pid = pid_of(machine, unit)
        machine.must(f"systemctl restart {unit}", timeout=100)
        assert pid_of(machine, unit) != pid
    await_every_second(machine)
    assert doubled(machine) == {}
    assert unfinished(machine) == []


@pytest.mark.parametrize("unit", UNITS)
def test_a_reload_applies_valid_settings_and_reports_invalid_settings(
    machine: Machine, unit: str
) -> None:
    file, pid = f"/etc/schedd/{unit}.toml", pid_of(machine, unit)
    reloaded(machine, unit, "reloaded: no setting has changed")
    machine.must(f"sed -i '1i log_level = \"debug\"' {file}")
    reloaded(machine, unit, "reloaded: log_level")
    machine.must(f"sed -i '1s/debug/loud/' {file}")
    reloaded(machine, unit, "reload rejected, the settings in force are kept")
    machine.must(f"sed -i 1d {file}")
    reloaded(machine, unit, "reloaded: log_level")
    assert pid_of(machine, unit) == pid, "none of it took a restart"


def test_a_stopped_worker_lets_its_programs_end(machine: Machine) -> None:
    run = schedctl(machine, "submit -- sh -c 'sleep 4; echo done'")["runId"]
    wait_until(
        lambda: schedctl(machine, f"run get {run}")["state"] == "RUNNING", WAIT_TIMEOUT, "its start"
    )
    machine.must("systemctl stop workerd")
    ended = schedctl(machine, f"run get {run}")
    assert (ended["state"], ended["attempt"]) == ("SUCCEEDED", 1)
    assert machine.tell("systemctl show -P Result workerd").strip() == "success"
    machine.must("systemctl start workerd")


def test_a_worker_without_programs_can_be_restricted_further(machine: Machine, figure: Any) -> None:
    with drop_in(machine, "no-programs"):
        score = score_of(machine, "workerd")
        figure(f"workerd.service scores {score} with no-programs.conf")
        assert score <= 2.5
        machine.must("""sed '1i egress.allow = ["127.0.0.1"]' -i /etc/schedd/workerd.toml""")
        machine.must("systemctl restart workerd")
        url = "http://127.0.0.1:7421/healthz"
        machine.must(f"schedctl submit --wait --exit-status --method GET --http {url}")


def test_a_root_worker_runs_programs_as_other_users_without_capabilities(
    machine: Machine, figure: Any
) -> None:
    with drop_in(machine, "other-users"):
        figure(f"workerd.service scores {score_of(machine, 'workerd')} with other-users.conf")
        script = "id -un; id -Gn; grep CapEff /proc/self/status"
        lines = machine.must(
            f"schedctl submit --wait --user games -- sh -c '{script}'"
        ).splitlines()
        assert lines[:2] == ["games", "games"]
        assert lines[2].split() == ["CapEff:", "0" * 16]
        reads = "-- sh -c 'cat $SCHEDD_PAYLOAD_FILE; ! ls /var/lib/workerd'"
        output = machine.must(
            f"schedctl submit --wait --exit-status --user games --payload 7 {reads}"
        )
        assert output.split() == ["7"], "what is its own of an attempt, and nothing else"


def test_invalid_settings_stop_the_daemon_for_good_with_a_reason(machine: Machine) -> None:
    machine.must("echo '[etcd' > /run/wrong.toml; chmod 644 /run/wrong.toml")
    machine.must("mkdir -p /run/systemd/system/schedd.service.d")
    wrong = "[Service]\\nExecStart=\\nExecStart=/opt/schedd/bin/schedd --config /run/wrong.toml\\n"
    machine.must(f"printf '{wrong}' > /run/systemd/system/schedd.service.d/wrong.conf")
    machine.must("systemctl daemon-reload")
    assert machine.run("systemctl restart schedd").returncode != 0
    wait_until(
        lambda: machine.tell("systemctl is-failed schedd").strip() == "failed",
        WAIT_TIMEOUT,
        "the end",
    )
    assert "/run/wrong.toml" in machine.tell("journalctl -u schedd -n 20 --no-pager")
    machine.must("rm -r /run/systemd/system/schedd.service.d; systemctl daemon-reload")
    machine.must("systemctl reset-failed schedd; systemctl start schedd")


def test_all_services_run_again_after_a_boot(machine: Machine, figure: Any) -> None:
    before = machine.await_boot()
    machine.run("systemctl reboot")
    began = time.monotonic()
    machine.await_boot(but=before)
    wait_until(
        lambda: machine.tell("systemctl is-active schedd workerd").split() == ["active"] * 2,
        60.0,
        "both daemons",
    )
    seen = len(started(machine, "steady"))
    wait_until(
        lambda: len(started(machine, "steady")) > seen + 1, WAIT_TIMEOUT, "runs after the boot"
    )
    figure(f"booted again and running jobs after {time.monotonic() - began:.0f} s")
    await_every_second(machine)
    assert doubled(machine) == {}


def await_every_second(machine: Machine) -> None:
    """Each instant of `steady` up to now has run, or stands in a row for several."""
    now = int(machine.tell("date +%s"))
    wait_until(
        lambda: max(_ran(_rows(machine)), default=0) > now and not _missing(_rows(machine)),
        WAIT_TIMEOUT,
        "all instants to be accounted for",
    )


def doubled(machine: Machine) -> dict[int, int]:
    """Seconds at which `steady` ran more than once, and how often: never, but where a worker was
    killed, whose run may have begun.
    """
    noted = Counter(map(_second, machine.must(f"cat {NOTED}").split()))
    again = {_second(row["scheduledAt"]) for row in _rows(machine) if row["assignments"] > 1}
    return {at: count for at, count in noted.items() if count > 1 and at not in again}


def unfinished(machine: Machine) -> list[dict[str, Any]]:
    """Runs of `steady` that failed or were cancelled."""
    return [row for row in _rows(machine) if row["state"] in ("FAILED", "CANCELLED")]


def _rows(machine: Machine) -> list[dict[str, Any]]:
    return list(schedctl(machine, "run list --job steady"))


def _missing(rows: Sequence[dict[str, Any]]) -> list[int]:
    """Seconds between the first row and the newest that ran for which no row stands."""
    there: set[int] = set()
    for row in rows:
        last = _second(row["scheduledAt"])
        until = _second(row["scheduledUntil"]) if row["scheduledUntil"] else last
        there |= set(range(min(last, until), max(last, until) + 1))
    return [second for second in range(min(there), max(_ran(rows))) if second not in there]


def _ran(rows: Sequence[dict[str, Any]]) -> list[int]:
    return [_second(row["scheduledAt"]) for row in rows if row["state"] == "SUCCEEDED"]


def _second(instant: str) -> int:
    return int(datetime.fromisoformat(instant).timestamp())
