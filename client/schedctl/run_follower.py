"""To its end: a run, with its output as it was written, one line of what became of it, exit code;
or what makes many runs, with a line whenever it has got further.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from typing import Final, TypeVar

import click

from schedclient import (
    ApiError,
    Client,
    DeadlineExceeded,
    FailedPrecondition,
    LogPiece,
    Result,
    Run,
    RunState,
)
from schedclient.values.runs import LIVE
from schedctl.columns import last_line, progress
from schedctl.output import MARKS, length, message, stamp
from schedctl.session import Session

RUN_FAILED: Final = 1
WAITING: Final = ("PENDING", "RETRYING")
EXPLAIN_AFTER: Final = 5.0
"""Seconds after which a command that waits for a run says why the run waits."""
ASK_WITHIN: Final = 5.0
"""Seconds for what is only told beside: meanwhile nothing is heard of the run."""

T = TypeVar("T")


async def wait(session: Session, client: Client, run: Run) -> Run:
    """Until it has ended, or `--timeout` passes, or Ctrl-C; the run itself is left alone."""
    asides = Asides(client)
    explaining = asyncio.create_task(asides.explain_wait(run), name="why")
    try:
        return await client.runs.wait(run, timeout=session.timeout, changed=asides.look)
    except asyncio.CancelledError:
        message(f"run {run.run_id} goes on: schedctl run wait {run.run_id}")
        raise
    finally:
        explaining.cancel()


class Asides:
    """What is said of a run while somebody waits for it: each attempt that failed, with when the
    next one comes; and, once for each reason, that each worker has refused it: it looks as if it
    were about to run, and never will be as things are.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._told: set[tuple[str, str | int]] = set()

    async def explain_wait(self, run: Run) -> None:
        """Say once why the run still waits, after EXPLAIN_AFTER seconds."""
        await asyncio.sleep(EXPLAIN_AFTER)
        try:
            now = await self._client.runs.get(run.run_id, deadline=ASK_WITHIN)
            if now.state not in WAITING:
                return
            found = await self._client.runs.why(run.run_id, deadline=ASK_WITHIN)
        except ApiError:
            return
        if (run.run_id, found.answer) not in self._told:
            self._told.add((run.run_id, found.answer))
            message(f"run {run.run_id}: {found.answer} schedctl run why {run.run_id}")

    async def look(self, run: Run) -> None:
        """At a run that has changed."""
        if run.retry_at is not None and (at := (run.run_id, run.fencing_token)) not in self._told:
            self._told.add(at)
            message(outcome(run))
        await self._refusals(run)

    async def _refusals(self, run: Run) -> None:
        if run.state not in WAITING or run.assignments <= run.attempt:
            return  # it is under way, or wasn't handed out in vain
        try:
            found = await self._client.runs.why(run.run_id, deadline=ASK_WITHIN)
        except ApiError:
            return  # who waits for the run hears of it there
        if found.refused and (at := (run.run_id, found.answer)) not in self._told:
            self._told.add(at)
            message(f"run {run.run_id}: {found.answer} schedctl run why {run.run_id}")


async def stay(session: Session, client: Client, run: Run, *, follow: bool) -> Run:
    """As `wait`; a person is shown its output: afterwards, or with `follow` as it comes."""
    if not session.tabular:
        return await wait(session, client, run)
    if not follow:
        run = await wait(session, client, run)
        await print_output(client, run)
        return run
    printing = asyncio.create_task(_print_any(client, run.run_id, follow=True), name="logs")
    try:
        run = await wait(session, client, run)
        await printing
    finally:
        printing.cancel()
    await print_returned(client, run)
    return run


async def to_its_end(
    session: Session,
    made: T,
    changes: AsyncIterator[T],
    progress: Callable[[T], str],
    ended: Callable[[T], bool],
    *,
    name: str,
    remedy: str,
) -> T:
    """Until it has ended, or `--timeout` passes, or Ctrl-C; it goes on by itself. `changes` are of
    it, each told by its member; `remedy` says what to do about one that goes on.
    """
    told = ""

    def tell(stands: T) -> bool:
        nonlocal told
        if (line := progress(stands)) != told:
            told = line
            message(line)
        return ended(stands)

    try:
        async with asyncio.timeout(session.timeout):
            if tell(made):
                return made
            async for made in changes:
                if tell(made):
                    break
            return made
    except TimeoutError:
        raise DeadlineExceeded(
            f"the {name} hasn't ended after {session.timeout:g} s: {told}",
            reason="STILL_RUNNING",
            remedy=f"it goes on; {remedy}",
        ) from None
    except asyncio.CancelledError:
        message(f"the {name} goes on: {remedy}")
        raise


def all_succeeded(states: Mapping[str, int], total: int, see: str) -> bool:
    """Whether none of these runs ended otherwise; else how they did is said, and where to `see`
    them: `3 of 5 runs didn't succeed (3 failed): schedctl run list … --state failed`.
    """
    ends = sorted(
        (state, count)
        for state, count in states.items()
        if count and state not in LIVE and state != RunState.SUCCEEDED
    )
    if ends:
        told = ", ".join(f"{count:,} {state.lower()}" for state, count in ends)
        listed = ",".join(state.lower() for state, _ in ends)
        missed = sum(count for _, count in ends)
        message(f"{missed:,} of {total:,} runs didn't succeed ({told}): {see} --state {listed}")
    return not ends


async def print_pieces(pieces: AsyncIterable[LogPiece], *, timestamps: bool = False) -> None:
    """Its stdout on ours, its stderr on ours, byte for byte; or each line after its time. What an
    attempt writes begins a line: where the one before it hasn't ended its last, that is ended here.
    """
    begins = {"STDOUT": True, "STDERR": True}
    attempts: dict[str, int] = {}
    async for piece in pieces:
        stream = sys.stderr if piece.stream == "STDERR" else sys.stdout
        if piece.note:
            stream.flush()
            message(piece.note)
            continue
        if piece.omitted:
            stream.flush()
            message(f"… {piece.omitted:,} bytes left out …")
        if not piece.data:
            continue
        before = attempts.get(piece.stream, piece.fencing_token)
        attempts[piece.stream] = piece.fencing_token
        if before != piece.fencing_token and not begins[piece.stream]:
            stream.buffer.write(b"\n")
            begins[piece.stream] = True
        data = piece.data
        if timestamps and piece.at is not None:
            data = _dated(data, stamp(piece.at), begins=begins[piece.stream])
        begins[piece.stream] = data.endswith(b"\n")
        stream.buffer.write(data)
        stream.flush()


def _dated(data: bytes, at: str, *, begins: bool) -> bytes:
    """Each line that begins in it after its time; the first one does if `begins`."""
    ahead = f"{at} ".encode()
    first, *others = data.splitlines(keepends=True)
    return b"".join([ahead if begins else b"", first, *(ahead + line for line in others)])


async def print_output(client: Client, run: Run) -> None:
    """What an ended run wrote, and what it returned (a handler's value, an answer's body)."""
    await _print_any(client, run.run_id)
    await print_returned(client, run)


async def _print_any(client: Client, run_id: str, *, follow: bool = False) -> None:
    """As `print_pieces`; of a broadcast, which writes nothing itself, who does."""
    try:
        await print_pieces(client.runs.logs(run_id, follow=follow))
    except FailedPrecondition as refused:
        if refused.reason != "IS_BROADCAST":
            raise
        message(str(refused))


async def print_returned(client: Client, run: Run) -> None:
    """What an ended run returned, if it is of a kind that does."""
    if run.succeeded and run.exit_code is None and not run.children:
        print_result(await client.runs.result(run.run_id))


def print_result(result: Result) -> None:
    """JSON, or the bytes themselves; nothing where nothing was returned."""
    if result.problem:
        message(f"what it returned ({result.size:,} bytes) isn't kept: {result.problem}")
        return
    if isinstance(result.value, bytes):
        sys.stdout.buffer.write(result.value)
        sys.stdout.flush()
    elif not result.empty:
        click.echo(json.dumps(result.value, ensure_ascii=False, indent=2))


def outcome(run: Run) -> str:
    """One line: `✓ SUCCEEDED etl 0198… in 1.2s on w1 (attempt 1, exit 0)`; of one that is tried
    again with when.
    """
    mark, _ = MARKS.get(run.state, ("•", ""))
    took = (
        f" in {length(run.finished_at - run.started_at)}"
        if run.finished_at and run.started_at
        else ""
    )
    where = f" on {run.worker}" if run.worker else ""
    facts = [f"attempt {run.attempt}"] if run.attempt else []
    facts += [run.reason] if run.reason else []
    facts += [f"exit {run.exit_code}"] if run.exit_code is not None else []
    told = f" ({', '.join(facts)})" if facts else ""
    again = f"; attempt {run.attempt + 1} at {stamp(run.retry_at)}" if run.retry_at else ""
    error = last_line(run.error) if again else run.error
    why = f": {error}" if error and not run.succeeded else ""
    why = why or (f": {progress(run)}" if run.progress else "")
    return f"{mark} {run.state} {run.job or 'run'} {run.run_id}{took}{where}{told}{why}{again}"


def exit_code(run: Run, *, passed_on: bool) -> int:
    """0 when it succeeded; else 1, or the job's own code where that is `passed_on`."""
    if passed_on and run.exit_code is not None and (run.exit_code or run.succeeded):
        return run.exit_code & 0xFF
    return 0 if run.succeeded else RUN_FAILED
