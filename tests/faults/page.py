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
from faults.proof import proof
from faults.rows import ROWS, Row

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "reliability.md"

HEAD = """\
# Reliability

What the cluster bears: each row with the test that injects the fault, and what was measured when
it ran last. Made from `docs/evidence` by `python -m faults.page`; edit `tests/faults/rows.py`.

Three etcd, PostgreSQL, three `schedd` and four `workerd` run as real processes, each in a network
namespace of its own, with leases of 3 s. Probe jobs write down themselves when they run; users
submit, edit, pause and delete meanwhile. When the fault has healed, a checker compares what jobs
wrote, what users were told, every commit of the database in its order and what the nemesis did. It
takes due instants from an oracle of its own.

```
make faults                                   the rows marked ●, as root: under 8 minutes
make faults-all                               every row
make faults-all ROW='NAME'                    one row: NAME as its second column has it, whole, such
                                              as test_member_killed_at[fire.after_commit]
make faults-long SECONDS=1800 SEED=7          faults at random; a seed draws the same again. The row
                                              `faults-long, seed 7` is this one's, no ROW
make mutants                                  the checker's own proof: it names what builds with one
                                              promise less have broken, and nothing in the product
```

On Debian and Ubuntu they need the packages iproute2, procps, util-linux and postgresql, and those
that move a clock (rows of clocks and of days, two mutants) faketime too; whatever is missing is
told by its name.

A row failed if one instant is *lost* (due, and neither run nor accounted for with a reason), one
run is *doubled* without an explanation (a lease lost, a death, a retry), or any other invariant
broke. *Late*: started more than 1 s after it was due. *Missed*: not run, for a reason that stands
in its row (SKIPPED, MISSED, COALESCED). *Gap*: the longest that a due job waited for its next run.
*Extra*: starts beyond the first that the faults explain. *Violated*: which invariant of those that
the checker judges (`tests/faults/checker`), and the first thing that it found; *inconclusive*: the
run proved nothing, and why.

*Late* and *gap* count every job of the whole ride, quiet times too. So they hold what no fault has
caused: jobs whose overlap policy has their runs wait for one another (`buffer_one` and the like)
are late on any day, by what the earlier run lasts. And they hold what the row did beside what it is
about: in `test_rolling_upgrade` a worker is twice cut off from an owner. Where a row says how late
a run may be, its test measures those runs that this is about, of all that started, and fails if one
is later; what it measured stands under [How long it takes](#how-long-it-takes).

## When a row fails

What was violated or inconclusive, or broke off, is kept in `schedd-faults-kept` in the folder for
temporary files (`$TMPDIR`, or `/tmp`), in a folder named by time, process and test: the history,
the daemons' logs, a dump of the database. Nothing takes it away but you. The test's output names
it, and the command that runs the row again. `FAULTS_KEEP=1 make faults` keeps good rides too: also
one whose verdict was good, and only what its test measured wasn't. To judge a history again, with
the evidence for what was found:

```
cd tests && ../.venv/bin/python -m faults.checker FOLDER [--json]
```

The table has five violations of each kind, and how many more there are; `--json` has all.
`make faults-long` keeps its own (`--keep` a good one too), and prints where.

## The rows

| fault: right behaviour | test | instants | late | missed | lost | doubled | extra | longest gap |
|---|---|--:|--:|--:|--:|--:|--:|--:|
"""

REJECTIONS_HEAD = """
## Rejections by PostgreSQL and etcd

By `tests/acceptance/test_rejections.py`, on three members and two workers. In each row no process
of schedd ended, and each due time was accounted for once. *Named*: every `/readyz` says the cause.
So do the overview, the doctor, the log and `schedd_dependency_failure`. *Well*: every member is
ready again after the correction. A full disk of the WAL ends PostgreSQL itself: *well* includes its
start.

| change | cause, in the words of `/readyz` | named after | well after | lasted | load | measured |
|---|---|--:|--:|--:|--:|---|
"""

LACKING = """
## Not shown here

| fault | why |
|---|---|
"""

ELSEWHERE = """
## Shown by other tests

| fault and right behaviour | tests |
|---|---|
"""

TAIL = """
## How long it takes

| test | measured | seconds |
|---|---|--:|
"""


HELD = """
## What is held before and after

All daemons of a kind together, in a quiet time before the first fault, and when the last had healed
and all had settled. A ride failed if anything hadn't come back (L6). Tables: those that hold only
what lives, after a VACUUM.

| ride | of | memory | descriptors | threads | connections to PostgreSQL | spool | tables |
|---|---|--:|--:|--:|--:|--:|--:|
"""


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
    merge = frozenset(merge_set)
    shown = [line for row in ROWS for line in _lines(row, latest, merge, cases)]
    elsewhere = [
        f"| {row.fault}: {row.behaviour} | {_paths(row.elsewhere)} |"
        for row in ROWS
        if row.elsewhere
    ]
    lacking = [f"| {row.fault} | {row.lacks} |" for row in ROWS if row.lacks]
    known = {name for row in ROWS for test in row.tests for name in _names(test, latest, cases)}
    took = [
        f"| `{name}` | {_measured(line)} | {line['seconds']:.0f} |"
        for name, line in sorted(latest.items())
        if name in known
    ]
    rejected = _text([*map(_rejection, {line["change"]: line for line in rejections}.values())])
    parts = (
        HEAD,
        _text(shown),
        REJECTIONS_HEAD,
        rejected,
        ELSEWHERE,
        _text(elsewhere),
        LACKING,
        _text(lacking),
    )
    held = [text for _, line in sorted(latest.items()) for text in _held(line)]
    return "".join((*parts, TAIL, _text(took), HELD, _text(held), proof(trials)))


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
    what = f"**{row.fault}**: {row.behaviour}"
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
    told = [
        f"{name}: {_brief(firsts[name])}" + (f", and {count - 1} more" if count > 1 else "")
        for name, count in counts.items()
    ]
    return f" ({'; '.join(told)})" if told else ""


def _brief(what: str) -> str:
    """Without a run's own prefix of its jobs and the day, and fit for a table."""
    return re.sub(r"\br\d{6,}-|\d{4}-\d\d-\d\dT", "", what).replace("|", "/")[:120]


def _measured(line: Mapping[str, Any]) -> str:
    named = {
        "lost_s": "lease let go after {} s",
        "key_gone_s": "key gone after {} s",
        "successor_s": "successor after {} s",
        "taken_s": "shards taken after {} s",
        "latest_s": "no run later than {} s",
        "handed_over_s": "{} s behind those due with it",
        "schema": "schema {}",
        "stale_results": "{} results STALE",
        "reads_p99_s": "reads' p99 {0[quiet]:.2f} → {0[attack]:.2f} s",
        "writes_p99_s": "writes' {0[quiet]:.2f} → {0[attack]:.2f} s",
        "rounds": "{} whole rounds",
        "late_p99_s": "starts' {0[quiet]:.2f} → {0[attack]:.2f} s",
        "member_mib": "a member's memory {0[quiet]} → {0[attack]} MiB",
        "healing_s": "all on time {} s after healing",
        "terms": "terms begun: {}",
        "recovery_s": "held {} s after it was opened",
    }
    told = [
        text.format(line["measured"][key]) for key, text in named.items() if key in line["measured"]
    ]
    told += [
        f"{kind}: of {each['wanted']:,} at most {each['most']:,} held at once,"
        f" {each['refused']:,} refused, {each['ended']:,} ended"
        for kind, each in line["measured"].get("connections", {}).items()
        if each["wanted"]
    ]
    if "load" in line:
        told.append(f"load {line['load']:.0f}")
    if "herd" in line["measured"]:
        told.append(_herd(line["measured"]["herd"]))
    if "outage" in line["measured"]:
        told.append(_outage(line["measured"]["outage"]))
    if "wire" in line["measured"]:
        told.append(_wire(line["measured"]["wire"]))
    if "hole" in line["measured"]:
        told.append(_hole(line["measured"]["hole"]))
    return ", ".join((line["date"], *([line["commit"]] if line.get("commit") else []), *told))


def _wire(done: Mapping[str, Any]) -> str:
    """What was done to a wire, in words."""
    struck = done["struck_up"] + done["struck_down"]
    kib = (done["bytes_up"] + done["bytes_down"]) / 1024
    did = {
        "slow": f"{struck} pieces late by {done['least_late'] or 0:.1f} s and more",
        "stall": f"{struck} times silent in mid-frame, {kib:.0f} KiB held back",
    }.get(done["way"], f"{struck} connections cut in mid-frame")
    return f"{done['found_struck']} of {done['found']} open connections struck, {did}"


def _herd(seen: Mapping[str, Any]) -> str:
    """What was seen of very many jobs due at one instant, in words."""
    peaks = {
        kind: max(most for name, (_, most) in seen["rss_mib"].items() if name.startswith(kind))
        for kind in ("m", "w")
    }
    block, urgent = max(seen["longest_block_s"].values()), seen["urgent"]["max_s"]
    return (
        f"{seen['jobs']} jobs ({seen['by_calls']} made by calls, {seen['calls_per_s']}/s; the rest"
        f" copies of one), run at {seen['runs_per_s']}/s, the last begun {seen['last_start_s']} s"
        f" late; at most {peaks['m']} MiB of a member and {peaks['w']} of a worker; no event loop"
        f" stood still for more than {block:.2f} s; smallest share of a worker"
        f" {seen['smallest_share']:.0%}; urgent jobs of the first minute at most {urgent:.2f} s"
        f" late, ordinary ones {seen['ordinary']['max_s']:.1f} s"
    )


def _outage(seen: Mapping[str, Any]) -> str:
    """What was seen of catching up, in words."""
    on_time = seen["on_time"]
    return (
        f"{seen['jobs']} jobs of each policy, caught up with {seen['drained_s']} s after members"
        f" were back; {seen['released']} runs of `all`, at most {seen['most_released']['10']} in"
        f" 10 s, {seen['most_at_once']} of {seen['slots']} slots at once;"
        f" {on_time['started']} runs that fell due meanwhile at most {on_time['max_s']} s late"
    )


def _hole(undone: Mapping[str, Any]) -> str:
    """What a restore has undone, in words."""
    return (
        f"{undone['seconds']} s undone: {undone['runs']} runs are gone, {undone['calls']} answers"
        f" `ok` with them; {undone['again']} runs ran again"
    )


def _held(line: Mapping[str, Any]) -> Iterator[str]:
    """The rows of a ride of drawn faults; the others are too short to leak."""
    if "faults" not in line["measured"]:
        return
    ride = f"`{line['test']}`: {line['measured']['faults']} faults in {line['seconds']:.0f} s"
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
        yield f"| {ride} | {sums['processes']} {kind} | {' | '.join(cells)} |"
        ride = "″"


def _paths(paths: Sequence[str]) -> str:
    return ", ".join(f"`{path}`" for path in paths)


def _text(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    from faults.collected import cases

    known = read_evidence(TRIALS), read_evidence(REJECTIONS)
    made = page(read_evidence(), merge_set(), cases(), *known)
    PAGE.write_text(made, encoding="utf-8")
