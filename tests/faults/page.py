"""Render docs/reliability.md and docs/evidence/fault-tests.md from the rows and the evidence.

    cd tests && ../.venv/bin/python -m faults.page

A test compares both pages with what these functions return.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from faults.checker import INVARIANTS
from faults.evidence import FILE, REJECTIONS, TRIALS
from faults.proof import PRODUCT, present_name, proof
from faults.rows import GROUPS, ROWS, Row

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "reliability.md"
MEASUREMENTS = DOCS / "evidence" / "fault-tests.md"

HEAD = """\
# Reliability

This page is for operators who want to know which faults a cluster survives.

## In short

Under [every fault of this page](#faults):

- No scheduled time is lost: each scheduled time runs, or a row in the database says why it didn't
  run.
- No run starts twice, unless a lost lease, a killed process or a retry explains the second start.
- If a leader or owner is killed, another member takes over within `member_ttl` + 1 s. The setting
  `member_ttl` is 5 s by default.
- If a lost worker sends a result too late, the result changes nothing.

The guarantees of this list don't hold if PostgreSQL is restored from a backup. The restore undoes
all changes that were stored after the backup ([what still
holds](operations/backup-and-restore.md)).

"""

FAULTS = """
## Faults

The [glossary](glossary.md) explains *owner*, *shard*, *epoch*, *token*, *spool* and STALE. [The
measurements](evidence/fault-tests.md) name the tests of each fault, with their figures.
"""

METHOD = """
## How the faults are tested

The test cluster has three etcd servers, PostgreSQL, three members and four workers. All parts of
the cluster run as real processes on one machine, each in its own network namespace. A lease in
etcd lasts 3 s.

1. Jobs record each start and end of their own runs. Simulated users submit, edit, pause and delete
   jobs.
2. Each test injects a fault, and removes the fault after some seconds.
3. A checker compares the records of the jobs, the answers to the users and the commits of the
   database. A separate program, which shares no code with schedd, computes the scheduled times.

`make faults` runs the most important tests in under 8 minutes, as root. [The guide to the
tests](../tests/README.md) describes all commands of the fault tests, and what to do when a
test fails.

### Invariants

A test passes only if the checker finds that all invariants hold:

| invariant | meaning |
|---|---|
"""

LACKING = """
## What isn't tested

| fault | what isn't tested |
|---|---|
"""

FIGURES = """\
# Measurements of the fault tests

This page is for developers who change a fault test. It has the newest figures of each test behind
[reliability.md](../reliability.md). `python -m faults.page` generates both pages.

## Runs of each test

A *history* is the record of one test run. The checker computes these figures from the history:

| column or word | meaning |
|---|---|
| scheduled times | the number of scheduled times that the checker compared |
| late | runs that started more than 1 s after their due time |
| not run, with reason | scheduled times whose row has the reason (SKIPPED, MISSED, COALESCED) |
| lost: no run, no reason | due times without a run, and without a row that gives the reason |
| extra starts, unexplained | second starts that no lost lease, killed process or retry explains |
| extra starts, explained | second starts after a lost lease, a killed process or a retry |
| longest gap | the longest time that a due job waited for its next run |
| ● | the test belongs to `make faults` |
| violated | the broken [invariant](../reliability.md#invariants), and the first violation found |
| inconclusive | the test proved nothing; the reason is given |

*Late* and *longest gap* count every job of the whole test, also in times without a fault. So the
two columns include delays that no fault caused:

- With an overlap policy such as `buffer_one`, runs of a job wait for each other. Such runs are late
  by the duration of the earlier run, also without a fault.
- `test_rolling_upgrade` also cuts off a worker from an owner twice.

| test | scheduled times | late | not run, with reason | lost: no run, no reason | \
extra starts, unexplained | extra starts, explained | longest gap |
|---|--:|--:|--:|--:|--:|--:|--:|
"""

TESTS = """
## Tests of each fault

Names are functions in `tests/faults`, or files.

| fault | tests |
|---|---|
"""

REJECTIONS_HEAD = """
## Rejections by PostgreSQL and etcd

`tests/acceptance/test_rejections.py` measured these figures on three members and two workers. In
each row, no process of schedd ended, and each due time was accounted for once.

- *Until named* is the time until every member's `/readyz` names the cause.
- *Until ready* is the time from the correction until every member is ready again. A full disk of
  the WAL stops PostgreSQL itself, so the time to readiness includes the start of PostgreSQL.
- *Lasted* is the duration of the rejection. *Load* is the number of runs that were due each second.

| change | cause, in the words of `/readyz` | until named | until ready | lasted | load | measured |
|---|---|--:|--:|--:|--:|---|
"""

TAIL = """
## Times

*Load* is the load average of the machine, and *seconds* the duration of the test. *On time again*
is the time from the end of the fault until all due runs started on time. An arrow leads from the
time before an attack to the time during the attack.

| test | figures | load | seconds | date, commit |
|---|---|--:|--:|---|
"""


HELD = """
## Resources before and after

Each figure is the sum over all daemons of a kind. The first number was measured in a quiet time
before the first fault. The second number was measured after the last fault had ended and all runs
had ended. A test fails if a figure hasn't returned to its start (invariant L6). *Tables* is the
size of the database's live rows after a VACUUM.

| test | sum over | memory | descriptors | threads | connections to PostgreSQL | spool | tables |
|---|---|--:|--:|--:|--:|--:|--:|
"""


COMPARED = "scheduled times that the fault tests checked"
LOST = "scheduled times that were lost: they have no run, and no row with a reason"
DOUBLED = "runs that started twice without an explanation"
KILLED = ("test_leader_killed", "test_member_killed_at")
SUCCEEDED = "time from the kill of a leader or owner to the takeover, with leases of 3 s"
REJECTED = "time from the first rejection by PostgreSQL or etcd until `/readyz` named its cause"
READY = "time from the last rejection by PostgreSQL or etcd until all members were ready"
PROVED = (
    "copies of schedd from which one guarantee was removed, and in which the checker found the"
    " defect"
)


def page(
    evidence: Iterable[Mapping[str, Any]],
    cases: Mapping[str, Sequence[str]],
    trials: Iterable[Mapping[str, Any]] = (),
    rejections: Iterable[Mapping[str, Any]] = (),
) -> str:
    """Return docs/reliability.md. The last of several measurements of one thing counts."""
    latest = _latest(evidence, cases)
    tables = [text for title, rows in GROUPS.items() for text in _group(title, rows)]
    invariants = [f"| {each.name} | {each.sentence} |" for each in INVARIANTS]
    lacking = [f"| {row.fault} | {row.lacks} |" for row in ROWS if row.lacks]
    parts = (
        HEAD,
        _text(_summary([*latest.values()], _refused(rejections), [*trials])),
        FAULTS,
        _text(tables),
        METHOD,
        _text(invariants),
        LACKING,
        _text(lacking),
    )
    return "".join(parts)


def measurements(
    evidence: Iterable[Mapping[str, Any]],
    merge_set: Iterable[str],
    cases: Mapping[str, Sequence[str]],
    trials: Iterable[Mapping[str, Any]] = (),
    rejections: Iterable[Mapping[str, Any]] = (),
) -> str:
    """Return docs/evidence/fault-tests.md. The last of several measurements of one thing counts."""
    latest, merge = _latest(evidence, cases), frozenset(merge_set)
    shown = [line for row in ROWS for line in _lines(row, latest, merge, cases)]
    took = [
        f"| `{name}` | {_measured(line)} | {_load(line)} | {line['seconds']:.0f} | {_when(line)} |"
        for name, line in sorted(latest.items())
    ]
    held = [text for _, line in sorted(latest.items()) for text in _held(line)]
    parts = (
        FIGURES,
        _text(shown),
        TESTS,
        _text([f"| {row.fault} | {_tests(row)} |" for row in ROWS if _tests(row)]),
        REJECTIONS_HEAD,
        _text([*map(_rejection, _refused(rejections))]),
        TAIL,
        _text(took),
        HELD,
        _text(held),
        proof(trials),
    )
    return "".join(parts)


def _latest(
    evidence: Iterable[Mapping[str, Any]], cases: Mapping[str, Sequence[str]]
) -> dict[str, Mapping[str, Any]]:
    """Return the last measurement of each present test, by the test's name."""
    latest = {line["test"]: line for line in evidence}
    known = {name for row in ROWS for test in row.tests for name in _names(test, latest, cases)}
    return {name: line for name, line in latest.items() if name in known}


def _refused(rejections: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the last measurement of each rejection."""
    return [*{line["change"]: line for line in rejections}.values()]


def _group(title: str, rows: Sequence[Row]) -> Iterator[str]:
    """The table of one kind of fault."""
    yield f"\n### {title}\n"
    yield "| fault | what schedd does | what users see | tested |"
    yield "|---|---|---|---|"
    for row in rows:
        tested = "yes" if row.tests or row.elsewhere else "[no](#what-isnt-tested)"
        yield f"| {row.fault} | {row.does} | {row.seen} | {tested} |"


def _tests(row: Row) -> str:
    return _paths([*row.tests, *row.elsewhere])


def _summary(
    lines: Sequence[Mapping[str, Any]],
    rejections: Sequence[Mapping[str, Any]],
    trials: Sequence[Mapping[str, Any]],
) -> Iterator[str]:
    """The headline figures: a table of what was measured, how much, and when."""
    judged = {
        field: sum(line["figures"][field] for line in lines)
        for field in ("judged", "lost", "doubled_without_explanation")
    }
    killed = [line for line in lines if line["test"].startswith(KILLED)]
    taken = [line for line in killed if "successor_s" in line["measured"]]
    caught = {present_name(line["build"]): line for line in trials if line["build"] != PRODUCT}
    right = sum(line["right"] for line in caught.values())
    yield "| measured | figure | when |"
    yield "|---|---|---|"
    cases, when = f"{len(lines)} test cases", _days(lines)
    yield f"| {COMPARED}, in {cases} | {judged['judged']:,} | {when} |"
    yield f"| {LOST} | {judged['lost']} | {when} |"
    yield f"| {DOUBLED} | {judged['doubled_without_explanation']} | {when} |"
    yield f"| test cases that failed | {sum(line['status'] != 'ok' for line in lines)} | {when} |"
    if taken:
        latest = max(line["measured"]["successor_s"] for line in taken)
        yield f"| {SUCCEEDED} | {latest} s at most | {_days(taken)} |"
    if rejections:
        named = max(line["named_s"] for line in rejections)
        well = max(line["well_s"] for line in rejections)
        when = _days(rejections)
        yield f"| {REJECTED} | {named:.1f} s at most | {when} |"
        yield f"| {READY} | {well:.1f} s at most | {when} |"
    if caught:
        figure = f"{right} of {len(caught)}"
        yield f"| {PROVED} | {figure} | {_days([*caught.values()])} |"


def _days(lines: Sequence[Mapping[str, Any]]) -> str:
    """The first and the last day of these measurements."""
    days = sorted({line["date"] for line in lines})
    return " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "never"


def _rejection(line: Mapping[str, Any]) -> str:
    return (
        f"| {line['change']} | {line['cause']} | {line['named_s']:.1f} s | {line['well_s']:.1f} s"
        f" | {line['lasted_s']:.0f} s | {line['jobs']} runs/s | {line['date']} |"
    )


def read_evidence(file: Path = FILE) -> list[Mapping[str, Any]]:
    """All measurements of a file, in the order in which they were made."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def merge_set() -> list[str]:
    """The tests of `make faults`: those that aren't marked `full`."""
    from faults.collected import functions

    return [name for name, full in functions().items() if not full]


def _lines(
    row: Row,
    latest: Mapping[str, Mapping[str, Any]],
    merge: frozenset[str],
    cases: Mapping[str, Sequence[str]],
) -> Iterator[str]:
    for test in row.tests:
        mark = "● " if test in merge else ""
        for name in _names(test, latest, cases):
            line = latest.get(name)
            cells = _cells(line) if line else "not measured yet | | | | | |"
            yield f"| {mark}`{name}` | {cells} |"


def _names(test: str, latest: Iterable[str], cases: Mapping[str, Sequence[str]]) -> list[str]:
    """The names under which a test is measured: its cases, its seeds, or its own."""
    seeds = sorted(name for name in latest if name.startswith(f"{test}, "))
    return seeds or [f"{test}[{case}]" for case in cases.get(test, ())] or [test]


def _cells(line: Mapping[str, Any]) -> str:
    figures = line["figures"]
    cells = (
        figures["judged"],
        figures["late"],
        figures["missed_with_reason"],
        figures["lost"],
        figures["doubled_without_explanation"],
        figures["extra_starts_explained"],
        f"{figures['longest_gap_s']:.1f} s",
    )
    verdict = "" if line["status"] == "ok" else f" **{line['status']}**{_why(line)}"
    return " | ".join(map(str, cells)) + verdict


def _why(line: Mapping[str, Any]) -> str:
    """The first that the checker found of each invariant, and how many more."""
    found = line.get("violations", ())
    counts = Counter(each["invariant"] for each in found)
    firsts = {each["invariant"]: each["what"] for each in reversed(found)}
    parts = [
        f"{name}: {_brief(firsts[name])}" + (f", and {count - 1} more" if count > 1 else "")
        for name, count in counts.items()
    ]
    return f" ({'; '.join(parts)})" if parts else ""


def _brief(what: str) -> str:
    """Without a run's own prefix of its jobs and the day, and fit for a table."""
    return re.sub(r"\br\d{6,}-|\d{4}-\d\d-\d\dT", "", what).replace("|", "/")[:120]


def _measured(line: Mapping[str, Any]) -> str:
    named = {
        "lost_s": "member stops renewing its lease after {} s",
        "key_gone_s": "key deleted after {} s",
        "successor_s": "successor after {} s",
        "taken_s": "shards taken after {} s",
        "latest_s": "no run later than {} s",
        "handed_over_s": "in a handover {} s behind other runs due at that time",
        "schema": "schema {}",
        "stale_results": "{} results STALE",
        "reads_p99_s": "p99 of reads {0[quiet]:.2f} → {0[attack]:.2f} s",
        "writes_p99_s": "p99 of writes {0[quiet]:.2f} → {0[attack]:.2f} s",
        "rounds": "whole rounds of the attack: {}",
        "late_p99_s": "p99 of the lateness of runs {0[quiet]:.2f} → {0[attack]:.2f} s",
        "member_mib": "a member's memory {0[quiet]} → {0[attack]} MiB",
        "healing_s": "on time again after {} s",
        "terms": "terms begun: {}",
        "recovery_s": "cluster held {} s after PostgreSQL accepted connections",
    }
    parts = [
        text.format(line["measured"][key]) for key, text in named.items() if key in line["measured"]
    ]
    parts += [
        f"{kind}: of {each['wanted']:,} connections at most {each['most']:,} open at once,"
        f" {each['refused']:,} refused, {each['ended']:,} ended"
        for kind, each in line["measured"].get("connections", {}).items()
        if each["wanted"]
    ]
    if "herd" in line["measured"]:
        parts.append(_herd(line["measured"]["herd"]))
    if "outage" in line["measured"]:
        parts.append(_outage(line["measured"]["outage"]))
    if "wire" in line["measured"]:
        parts.append(_wire(line["measured"]["wire"]))
    if "hole" in line["measured"]:
        parts.append(_hole(line["measured"]["hole"]))
    return ", ".join(parts)


def _load(line: Mapping[str, Any]) -> str:
    return f"{line['load']:.0f}" if "load" in line else ""


def _when(line: Mapping[str, Any]) -> str:
    """The date and the commit of a measurement."""
    return ", ".join((line["date"], *([line["commit"]] if line.get("commit") else [])))


def _wire(done: Mapping[str, Any]) -> str:
    """Describe the effects on a connection."""
    struck = done["struck_up"] + done["struck_down"]
    kib = (done["bytes_up"] + done["bytes_down"]) / 1024
    did = {
        "slow": f"{struck} pieces of data late by {done['least_late'] or 0:.1f} s and more",
        "stall": f"{struck} pauses in mid-frame, {kib:.0f} KiB held back",
    }.get(done["way"], f"{struck} connections cut in mid-frame")
    return f"{done['found_struck']} of {done['found']} open connections struck, {did}"


def _herd(seen: Mapping[str, Any]) -> str:
    """Describe the effects of very many jobs due at one instant."""
    peaks = {
        kind: max(most for name, (_, most) in seen["rss_mib"].items() if name.startswith(kind))
        for kind in ("m", "w")
    }
    block, urgent = max(seen["longest_block_s"].values()), seen["urgent"]["max_s"]
    return (
        f"{seen['jobs']} jobs ({seen['by_calls']} created by calls, {seen['calls_per_s']}/s; the"
        f" rest copies of one job), {seen['runs_per_s']} runs/s, the last run"
        f" {seen['last_start_s']} s late; memory of a member at most {peaks['m']} MiB,"
        f" of a worker {peaks['w']} MiB; no event loop blocked for more than {block:.2f} s;"
        f" smallest share of a worker {seen['smallest_share']:.0%}; urgent jobs of the first"
        f" minute at most {urgent:.2f} s late, ordinary jobs {seen['ordinary']['max_s']:.1f} s"
    )


def _outage(seen: Mapping[str, Any]) -> str:
    """Describe a catch-up."""
    on_time = seen["on_time"]
    return (
        f"{seen['jobs']} jobs of each policy, catch-up ended {seen['drained_s']} s after members"
        f" were back; {seen['released']} runs of `all`, at most {seen['most_released']['10']} in"
        f" 10 s, in at most {seen['most_at_once']} of {seen['slots']} slots;"
        f" {on_time['started']} runs due during catch-up at most {on_time['max_s']} s late"
    )


def _hole(undone: Mapping[str, Any]) -> str:
    """Describe the losses of a restore."""
    return (
        f"{undone['seconds']} s of changes lost: {undone['runs']} runs and {undone['calls']} calls"
        f" answered `ok` are lost; {undone['again']} runs ran again"
    )


def _held(line: Mapping[str, Any]) -> Iterator[str]:
    """The rows of a long run of drawn faults; the others are too short to leak."""
    if "faults" not in line["measured"]:
        return
    run = f"`{line['test']}`: {line['measured']['faults']} faults in {line['seconds']:.0f} s"
    for kind, sums in line["measured"]["held"].items():
        mebibytes = [f"{kib / 1024:.0f}" for kib in sums["rss_kib"]]
        cells = (
            f"{' → '.join(mebibytes)} MiB",
            *(
                " → ".join(map(str, sums[field])) if field in sums else ""
                for field in ("fds", "threads", "connections")
            ),
            f"{' → '.join(map(str, sums['spool_bytes']))} B" if "spool_bytes" in sums else "",
            " → ".join(f"{size // 1024} KiB" for size in sums.get("heap_bytes", ())),
        )
        yield f"| {run} | {sums['processes']} {kind} | {' | '.join(cells)} |"
        run = "″"


def _paths(paths: Sequence[str]) -> str:
    return ", ".join(f"`{path}`" for path in paths)


def _text(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    from faults.collected import cases

    measured, known = read_evidence(), (read_evidence(TRIALS), read_evidence(REJECTIONS))
    PAGE.write_text(page(measured, cases(), *known), encoding="utf-8")
    made = measurements(measured, merge_set(), cases(), *known)
    MEASUREMENTS.write_text(made, encoding="utf-8")
