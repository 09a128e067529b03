"""Follow a run to its end: print its output and its outcome, and return the exit code.

A backfill, redrive or drain is followed with a line for each change of its progress.
"""

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
"""Seconds after which a waiting command prints why its run hasn't started."""
EXPLAIN_TIMEOUT: Final = 5.0
"""Timeout of calls for explanations; meanwhile no change of the run is received."""

T = TypeVar("T")


async def wait(session: Session, client: Client, run: Run) -> Run:
    """Wait until the run has ended, `--timeout` or Ctrl-C; the run itself isn't canceled."""
    progress = WaitMessages(client)
    explaining = asyncio.create_task(progress.explain_wait(run), name="why")
    try:
        return await client.runs.wait(run, timeout=session.timeout, changed=progress.on_change)
    except asyncio.CancelledError:
        message(f"run {run.run_id} continues; to wait for it: schedctl run wait {run.run_id}")
        raise
    finally:
        explaining.cancel()


class WaitMessages:
    """Messages about a run while a command waits for it. They report each failed attempt with the
    time of the next one and, once for each reason, that every worker rejected the run: it would
    never start.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._printed: set[tuple[str, str | int]] = set()

    async def explain_wait(self, run: Run) -> None:
        """Print once why the run still waits, after EXPLAIN_AFTER seconds."""
        await asyncio.sleep(EXPLAIN_AFTER)
        try:
            now = await self._client.runs.get(run.run_id, deadline=EXPLAIN_TIMEOUT)
            if now.state not in WAITING:
                return
            found = await self._client.runs.why(run.run_id, deadline=EXPLAIN_TIMEOUT)
        except ApiError:
            return
        self._print_once(run, found.answer)

    async def on_change(self, run: Run) -> None:
        at = (run.run_id, run.fencing_token)
        if run.retry_at is not None and at not in self._printed:
            self._printed.add(at)
            message(outcome(run))
        if run.state not in WAITING or run.assignments <= run.attempt:
            return  # no worker rejected it
        try:
            found = await self._client.runs.why(run.run_id, deadline=EXPLAIN_TIMEOUT)
        except ApiError:
            return  # waiting for the run reports the error
        if found.refused:
            self._print_once(run, found.answer)

    def _print_once(self, run: Run, answer: str) -> None:
        if (run.run_id, answer) not in self._printed:
            self._printed.add((run.run_id, answer))
            message(f"run {run.run_id}: {answer} Details: schedctl run why {run.run_id}")


async def stay(session: Session, client: Client, run: Run, *, follow: bool) -> Run:
    """Wait as `wait` does; in a table format also print the output, with `follow` as it arrives."""
    if not session.tabular:
        return await wait(session, client, run)
    if not follow:
        run = await wait(session, client, run)
        await _print_any(client, run.run_id)
        await print_returned(client, run)
        return run
    printing = asyncio.create_task(_print_any(client, run.run_id, follow=True), name="logs")
    try:
        run = await wait(session, client, run)
        await printing
    finally:
        printing.cancel()
    await print_returned(client, run)
    return run


async def follow_to_end(
    session: Session,
    made: T,
    changes: AsyncIterator[T],
    progress: Callable[[T], str],
    ended: Callable[[T], bool],
    *,
    name: str,
    remedy: str,
) -> T:
    """Wait until the operation has ended, `--timeout` or Ctrl-C; the operation itself continues.
    `changes` are its states as they are received. `remedy` is a command for an operation that
    continues.
    """
    printed = ""

    def report(state: T) -> bool:
        nonlocal printed
        if (line := progress(state)) != printed:
            printed = line
            message(line)
        return ended(state)

    try:
        async with asyncio.timeout(session.timeout):
            if report(made):
                return made
            async for made in changes:
                if report(made):
                    break
            return made
    except TimeoutError:
        raise DeadlineExceeded(
            f"{name} hasn't ended after {session.timeout:g} s: {printed}",
            reason="STILL_RUNNING",
            remedy=f"the operation continues; {remedy}",
        ) from None
    except asyncio.CancelledError:
        message(f"{name} continues: {remedy}")
        raise


def all_succeeded(states: Mapping[str, int], total: int, see: str) -> bool:
    """Return whether all ended runs succeeded; else print their states and how to list them. The
    line is `3 of 5 runs didn't succeed (3 failed); to list them: schedctl run list …`.
    """
    ends = sorted(
        (state, count)
        for state, count in states.items()
        if count and state not in LIVE and state != RunState.SUCCEEDED
    )
    if ends:
        counts = ", ".join(f"{count:,} {state.lower()}" for state, count in ends)
        listed = ",".join(state.lower() for state, _ in ends)
        missed = sum(count for _, count in ends)
        message(
            f"{missed:,} of {total:,} runs didn't succeed ({counts});"
            f" to list them: {see} --state {listed}"
        )
    return not ends


async def print_pieces(pieces: AsyncIterable[LogPiece], *, timestamps: bool = False) -> None:
    """Print a run's stdout on stdout and its stderr on stderr, byte for byte or with timestamps.
    The output of each attempt begins on a new line.
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
            message(f"… {piece.omitted:,} bytes omitted …")
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
    """Put the time before each line; before the first one only if `begins`."""
    ahead = f"{at} ".encode()
    first, *others = data.splitlines(keepends=True)
    return b"".join([ahead if begins else b"", first, *(ahead + line for line in others)])


async def _print_any(client: Client, run_id: str, *, follow: bool = False) -> None:
    """Print the output; for a broadcast, which has none, a message that names its children."""
    try:
        await print_pieces(client.runs.logs(run_id, follow=follow))
    except FailedPrecondition as refused:
        if refused.reason != "IS_BROADCAST":
            raise
        message(str(refused))


async def print_returned(client: Client, run: Run) -> None:
    """Print the result of a run that succeeded, if its action returns one."""
    if run.succeeded and run.exit_code is None and not run.children:
        print_result(await client.runs.result(run.run_id))


def print_result(result: Result) -> None:
    """Print a result as JSON or raw bytes; print nothing if it is empty."""
    if result.problem:
        message(f"result ({result.size:,} bytes) wasn't stored: {result.problem}")
        return
    if isinstance(result.value, bytes):
        sys.stdout.buffer.write(result.value)
        sys.stdout.flush()
    elif not result.empty:
        click.echo(json.dumps(result.value, ensure_ascii=False, indent=2))


def outcome(run: Run) -> str:
    """Return the state of a run in one line, with the time of its retry if there is one. The line
    is `✓ SUCCEEDED etl 0198… in 1.2s on w1 (attempt 1, exit 0)`.
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
    details = f" ({', '.join(facts)})" if facts else ""
    again = f"; attempt {run.attempt + 1} at {stamp(run.retry_at)}" if run.retry_at else ""
    error = last_line(run.error) if again else run.error
    why = f": {error}" if error and not run.succeeded else ""
    why = why or (f": {progress(run)}" if run.progress else "")
    return f"{mark} {run.state} {run.job or 'run'} {run.run_id}{took}{where}{details}{why}{again}"


def exit_code(run: Run, *, passed_on: bool) -> int:
    """Return 0 for success, else 1; with `passed_on` the job's own exit code."""
    if passed_on and run.exit_code is not None and (run.exit_code or run.succeeded):
        return run.exit_code & 0xFF
    return 0 if run.succeeded else RUN_FAILED
