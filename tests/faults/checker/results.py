"""S1, S2, S3: what was accepted, and the order of everything that fences.

A worker's digest is SHA-256 over run, token, verdict, reason, exit code and error, each with its
length before it: a fixed encoding, computed again here. The token is in it, so the digest in a row
tells under which token its result was made, whatever the row's own token says.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator

from faults.checker.epoch_log import epoch_log
from faults.checker.rows import Run
from faults.checker.tables import Step, clock
from faults.checker.verdict import Violation
from faults.checker.world import World

SUCCEEDED, FAILED = 1, 2
NO_REASON, EXIT_CODE, DONT_RETRY = 0, 20, 30
DONT_RETRY_CODE = 100
CUT_SHORT = frozenset({"SIGNAL", "TIMEOUT", "RUN_TIMEOUT", "BY_USER", "BY_OVERLAP", "DELETED"})
"""Reasons for which a worker ends a program, so it may have written its last line before; so may
what a worker that leaves gives back.
"""


def accepted(step: Step[Run]) -> bool:
    """Whether this step took a result in."""
    before, after = step.before, step.after
    if after is None or after.digest is None:
        return False
    return before is None or before.digest != after.digest


def s1(world: World) -> Iterator[Violation]:
    """At most one accepted result per run; its digest equals what a worker sent."""
    for steps in world.runs.rows.values():
        taken = [step for step in steps if accepted(step)]
        final = [step for step in taken if step.after is not None and step.after.ended]
        by_token: dict[int, list[Step[Run]]] = defaultdict(list)
        for step in taken:
            if step.after is not None:
                by_token[step.after.token].append(step)
        for several in (final, *by_token.values()):
            if len(several) > 1:
                evidence = tuple(map(_describe, several))
                yield Violation("S1", f"{_run(several[0])} took {len(several)} results", evidence)
                break
        for step in taken:
            yield from _unsent(world, step)


def s2(world: World) -> Iterator[Violation]:
    """A result with token k is never accepted after a greater token was committed."""
    for steps in world.runs.rows.values():
        greatest = 0
        for step in steps:
            run = step.after
            if run is None:
                continue
            if accepted(step):
                older = _made_under(world, run)
                if run.token < greatest or (older is not None and older < run.token):
                    yield Violation(
                        "S2",
                        f"{_run(step)} took a result of token {older or run.token}"
                        f" after token {max(greatest, run.token)} was committed",
                        (_describe(step), *_lines(world, run.run_id)),
                    )
            greatest = max(greatest, run.token)


def s3(world: World) -> Iterator[Violation]:
    """Tokens grow per job in commit order; epochs and terms grow."""
    yield from _tokens(world)
    yield from epoch_log(world)
    for step in world.shards.steps:
        before, after = step.before, step.after
        if before is None or after is None:
            continue
        taken = after.owner is not None and after.owner != before.owner
        if after.epoch < before.epoch or (taken and after.epoch == before.epoch):
            yield Violation(
                "S3",
                f"shard {after.id} went from epoch {before.epoch} to {after.epoch}",
                (f"{step.where}: owner {before.owner} → {after.owner}",),
            )
    for term in world.terms.steps:
        same = term.before == term.after  # a row read twice, or from before the first commit
        if term.before and term.after and not same and term.after.term <= term.before.term:
            what = f"the term went from {term.before.term} to {term.after.term}"
            yield Violation("S3", what, (term.where,))


def _tokens(world: World) -> Iterator[Violation]:
    greatest: dict[str, tuple[int, Step[Run]]] = {}
    fresh: list[Step[Run]] = []

    def judge() -> Iterator[Violation]:
        for step in sorted(fresh, key=lambda s: s.after.token if s.after else 0):
            run = step.after
            assert run is not None
            last, where = greatest.get(run.job_id, (0, step))
            if run.token <= last:
                yield Violation(
                    "S3",
                    f"{_run(step)} got token {run.token} when its job had {last} already",
                    (step.where, f"token {last}: {where.where}"),
                )
            greatest[run.job_id] = max((last, where), (run.token, step), key=lambda pair: pair[0])
        fresh.clear()

    for step in world.runs.steps:
        if fresh and fresh[-1].commit != step.commit:
            yield from judge()
        if step.after is not None and step.after.token != (step.before.token if step.before else 0):
            fresh.append(step)
    yield from judge()


def _unsent(world: World, step: Step[Run]) -> Iterator[Violation]:
    """Yield a result that no worker can have sent, as far as the probe jobs' own lines can tell."""
    run = step.after
    if run is None or not world.writes(run):
        return
    end = world.ends.get((run.run_id, run.token))
    if run.state == "SUCCEEDED" and (end is None or end.at > step.at):
        what = "before that attempt had ended" if end else "though that attempt never ended"
        evidence = (_describe(step), *_lines(world, run.run_id))
        yield Violation("S1", f"{_run(step)} took a result {what}", evidence)
    elif end is not None and end.exit is not None:
        given_back = run.exit_code is None and not run.ended
        if end.exit != run.exit_code and (given_back or run.reason in CUT_SHORT):
            return
        agrees = (run.state == "SUCCEEDED") == (end.exit == 0) or run.state == "CANCELLED"
        if not agrees or end.exit != run.exit_code:
            code = f"exit code {run.exit_code}, and its worker sent {end.exit}"
            what = f"{_run(step)} ended {run.state} with {code}"
            yield Violation("S1", what, (_describe(step), *_lines(world, run.run_id)))
        sent = end.digest or digest(run.run_id, run.token, end.exit)
        if _plain(run.digest) != _plain(sent):
            yield Violation(
                "S1",
                f"{_run(step)} holds a digest that its worker never sent",
                (_describe(step), f"stored {run.digest}", f"sent   {sent}"),
            )


def _made_under(world: World, run: Run) -> int | None:
    """The token under which the run's result was made, as its digest tells; None: it doesn't."""
    for start in world.starts.get(run.run_id, ()):
        end = world.ends.get((run.run_id, start.token))
        if end is None or end.exit is None:
            continue
        sent = end.digest or digest(run.run_id, start.token, end.exit)
        if _plain(sent) == _plain(run.digest):
            return start.token
    return None


def digest(run_id: str, token: int, code: int) -> str:
    """Return the digest a worker sends for a program with this exit code and without a result."""
    verdict = FAILED if code else SUCCEEDED
    reason = (DONT_RETRY if code == DONT_RETRY_CODE else EXIT_CODE) if code else NO_REASON
    error = f"exit code {code}" if code else ""
    sha = hashlib.sha256()
    for each in (run_id, str(token), str(verdict), str(reason), str(code), error, ""):
        field = each.encode()
        sha.update(len(field).to_bytes(8, "big"))
        sha.update(field)
    return sha.hexdigest()


def _plain(digest: str | None) -> str | None:
    return None if digest is None else digest.removeprefix("\\x")


def _run(step: Step[Run]) -> str:
    run = step.after
    assert run is not None
    return f"run {run.run_id} (job {run.job_id}, {clock(run.scheduled_at)})"


def _describe(step: Step[Run]) -> str:
    run = step.after
    assert run is not None
    was = step.before.state if step.before else "nothing"
    reason = f" ({run.reason})" if run.reason else ""
    return f"{step.where}: {was} → {run.state}{reason} under token {run.token} of {run.worker}"


def _lines(world: World, run_id: str) -> Iterator[str]:
    for start in world.starts.get(run_id, ()):
        end = world.ends.get((run_id, start.token))
        until = f"ended {clock(end.at)} with {end.exit}" if end else "no end"
        yield f"{start.worker} wrote: token {start.token} started {clock(start.at)}, {until}"
