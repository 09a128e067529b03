"""Renders docs/reliability.md from the rows and the evidence, from the folder `tests`:

    ../.venv/bin/python -m faults.page

A test compares the page with what this gives.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from faults.evidence import FILE, REJECTIONS, TRIALS
from faults.proof import PRODUCT, present_name, proof
from faults.rows import ROWS, Row

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "reliability.md"

HEAD = """\
# Reliability

This page is for readers who want to know which faults a cluster survives, and how this was
measured. `python -m faults.page` generates the page from `docs/evidence`. To change it, edit
`tests/faults/rows.py`.

## In short

Under [every fault of this page](#guarantees):

- no scheduled time is lost: each scheduled time runs, or a row says why it didn't run;
- no run starts twice, unless a lost lease, a killed process or a retry explains the second start;
- a killed leader or owner has a successor within TTL + 1 s of the last kill;
- late results of lost workers change nothing.

The only exception is a restore from a backup, which undoes all changes that were stored after the
backup. The table of guarantees says what still holds after a restore.

"""

GUARANTEES = """
## Guarantees

| fault | required behavior |
|---|---|
"""

METHOD = """
## How it is measured

The test cluster has three etcd, PostgreSQL, three `schedd` and four `workerd`. All run as real
processes on one machine, each in its own network namespace, with leases of 3 s. [Some
faults](#not-shown-here) aren't tested yet.

1. Probe jobs record their own runs. Simulated users submit, edit, pause and delete jobs meanwhile.
2. The test injects the fault, then removes the fault (*healing*).
3. A checker compares the records of the jobs, the answers to the users, every commit of the
   database in order, and the injected faults. An oracle, which shares no code with schedd, computes
   the scheduled times.

```
make faults                                   run the rows marked ●, as root: under 8 minutes
make faults-all                               run every row
make faults-all ROW='NAME'                    run one row: NAME is the whole second column, such as
                                              test_member_killed_at[fire.after_commit]
make faults-long SECONDS=1800 SEED=7          run random faults; a seed repeats the same faults. The
                                              row `faults-long, seed 7` is this command, not a ROW
make mutants                                  test the checker: it must find the fault of each
                                              mutant, and none without a mutant
```

On Debian and Ubuntu, install iproute2, procps, util-linux and postgresql. Tests that move a clock
(rows of clocks and of days, two mutants) also need faketime. The tests name a missing package.

## When a row fails

The test keeps a [violated, inconclusive](#the-rows) or aborted test run in `schedd-faults-kept`, in
the folder for temporary files (`$TMPDIR`, or `/tmp`). Each kept test run has a folder, named by
time, process and test. The folder contains the history, the daemons' logs and a dump of the
database. Kept folders aren't deleted automatically. The test prints the folder, and the command
that repeats the row.

`FAULTS_KEEP=1 make faults` also keeps good test runs, and test runs in which only the measured time
was bad. To check a history again, with the evidence for each finding:

```
cd tests && ../.venv/bin/python -m faults.checker FOLDER [--json]
```

The checker prints five violations of each invariant, and the number of further violations; `--json`
prints all. `make faults-long` also keeps its test runs and prints their folder. With `--keep`, it
keeps good test runs too.

## The rows

| column or word | meaning |
|---|---|
| scheduled times | scheduled times that the checker compared with the oracle |
| late | runs that started more than 1 s after their due time |
| not run, with reason | scheduled times whose row has the reason (SKIPPED, MISSED, COALESCED) |
| lost: no run, no reason | due times without a run, and without a row that gives the reason |
| extra starts, unexplained | second starts that no lost lease, killed process or retry explains |
| extra starts, explained | further starts of a run after a lost lease, killed process or retry |
| longest gap | the longest time that a due job waited for its next run |
| violated | the broken [invariant](#the-checkers-own-proof), and the first violation found |
| inconclusive | the test proved nothing; the reason is given |

A row fails if a scheduled time is lost, if a run starts twice without an explanation, or if another
invariant is broken.

*Late* and *longest gap* count every job of the whole test, also in times without a fault. So the
two columns include delays that no fault caused:

- With an overlap policy such as `buffer_one`, runs of a job wait for each other. Such runs are late
  by the duration of the earlier run, also without a fault.
- Some tests do more than their row says: `test_rolling_upgrade` cuts a worker off from an owner
  twice.

If a row says how late a run may be, the row's test measures the affected runs that started. The
test fails if a run is later. [How long it takes](#how-long-it-takes) has the figures.

| fault | test | scheduled times | late | not run, with reason | lost: no run, no reason | \
extra starts, unexplained | extra starts, explained | longest gap |
|---|---|--:|--:|--:|--:|--:|--:|--:|
"""

REJECTIONS_HEAD = """
## Rejections by PostgreSQL and etcd

`tests/acceptance/test_rejections.py` measured these figures on three members and two workers. In
each row, no process of schedd ended, and each due time was accounted for once.

- *Until named* is the time until every member's `/readyz` names the cause. The overview, the
  doctor, the log and `schedd_dependency_failure` name the cause too.
- *Until ready* is the time from the correction until every member is ready again. A full disk of
  the WAL stops PostgreSQL itself, so the time to readiness includes the start of PostgreSQL.
- *Lasted* is the duration of the rejection. *Load* is the number of runs that were due each second.

| change | cause, in the words of `/readyz` | until named | until ready | lasted | load | measured |
|---|---|--:|--:|--:|--:|---|
"""

LACKING = """
## Not shown here

| fault | what isn't shown, and why |
|---|---|
"""

ELSEWHERE = """
## Shown by other tests

| fault | tests |
|---|---|
"""

TAIL = """
## How long it takes

*Load* is the load average of the machine, and *seconds* the duration of the test. *On time again*
is the time from the end of the fault until all due runs started on time. An arrow leads from the
time before an attack to the time during the attack.

| test | figures | load | seconds | date, commit |
|---|---|--:|--:|---|
"""


HELD = """
## What is held before and after

Each figure is the sum over all daemons of a kind. The first number was measured in a quiet time
before the first fault. The second number was measured after the last fault had healed and all runs
had ended. A test fails if a figure hasn't returned to its start (invariant L6). *Tables* is the
size of the database's live rows after a VACUUM.

| test | sum over | memory | descriptors | threads | connections to PostgreSQL | spool | tables |
|---|---|--:|--:|--:|--:|--:|--:|
"""


COMPARED = "scheduled times that the checker compared with the oracle"
LOST = "scheduled times lost: no run, and no row with a reason"
DOUBLED = "runs started twice without an explanation"
KILLED = ("test_leader_killed", "test_member_killed_at")
SUCCEEDED = "time from the kill of a leader or owner to its successor, with TTL 3 s"
REJECTED = "time after PostgreSQL or etcd began to reject calls, until the cause was named"
READY = "time after those rejections ended, until all members were ready"
PROVED = "mutants (schedd with one guarantee removed) that the checker caught"


def page(
    evidence: Iterable[Mapping[str, Any]],
    merge_set: Iterable[str],
    cases: Mapping[str, Sequence[str]],
    trials: Iterable[Mapping[str, Any]] = (),
    rejections: Iterable[Mapping[str, Any]] = (),
) -> str:
    """The page; of several measurements of one test, or of one of its `cases`, the last counts, and
    of one mutant's trials, and of one rejection's.
    """
    latest: dict[str, Mapping[str, Any]] = {}
    for line in evidence:
        latest[line["test"]] = line
    merge, tried = frozenset(merge_set), [*trials]
    shown = [line for row in ROWS for line in _lines(row, latest, merge, cases)]
    elsewhere = [f"| {row.fault} | {_paths(row.elsewhere)} |" for row in ROWS if row.elsewhere]
    lacking = [f"| {row.fault} | {row.lacks} |" for row in ROWS if row.lacks]
    known = {name for row in ROWS for test in row.tests for name in _names(test, latest, cases)}
    took = [
        f"| `{name}` | {_measured(line)} | {_load(line)} | {line['seconds']:.0f} | {_when(line)} |"
        for name, line in sorted(latest.items())
        if name in known
    ]
    refused = [*{line["change"]: line for line in rejections}.values()]
    rejected = _text([*map(_rejection, refused)])
    judged = [line for name, line in latest.items() if name in known]
    parts = (
        HEAD,
        _text(_summary(judged, refused, tried)),
        GUARANTEES,
        _text([f"| {row.fault} | {row.behaviour} |" for row in ROWS]),
        METHOD,
        _text(shown),
        REJECTIONS_HEAD,
        rejected,
        ELSEWHERE,
        _text(elsewhere),
        LACKING,
        _text(lacking),
    )
    held = [text for _, line in sorted(latest.items()) for text in _held(line)]
    return "".join((*parts, TAIL, _text(took), HELD, _text(held), proof(tried)))


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
    cases = f"{len(lines)} test cases"
    yield f"| {COMPARED}, in {cases} | {judged['judged']:,} | {_days(lines)} |"
    yield f"| {LOST} | {judged['lost']} | ″ |"
    yield f"| {DOUBLED} | {judged['doubled_without_explanation']} | ″ |"
    yield f"| test cases that failed | {sum(line['status'] != 'ok' for line in lines)} | ″ |"
    if taken:
        latest = max(line["measured"]["successor_s"] for line in taken)
        yield f"| {SUCCEEDED} | {latest} s at most | {_days(taken)} |"
    if rejections:
        named = max(line["named_s"] for line in rejections)
        well = max(line["well_s"] for line in rejections)
        yield f"| {REJECTED} | {named:.1f} s at most | {_days(rejections)} |"
        yield f"| {READY} | {well:.1f} s at most | ″ |"
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
    what = f"**{row.fault}**"
    for test in row.tests:
        mark = "● " if test in merge else ""
        for name in _names(test, latest, cases):
            line = latest.get(name)
            cells = _cells(line) if line else "not measured yet | | | | | |"
            yield f"| {what} | {mark}`{name}` | {cells} |"
            what = "″"


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

    known = read_evidence(TRIALS), read_evidence(REJECTIONS)
    made = page(read_evidence(), merge_set(), cases(), *known)
    PAGE.write_text(made, encoding="utf-8")
