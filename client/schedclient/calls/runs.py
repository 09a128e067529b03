"""Calls on runs: what became of the work."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any

from google.protobuf.message import Message

from schedclient.calls import paging, watching
from schedclient.calls.naming import run_of
from schedclient.calls.specs import When, payload_message, when_message
from schedclient.errors import (
    ClusterUnavailable,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    from_form,
)
from schedclient.transport import methods
from schedclient.transport.transport import NOBODY, Transport
from schedclient.values.events import RunEvent
from schedclient.values.reading import value_of
from schedclient.values.runs import Attempt, Explanation, LogPiece, Result, Run
from schedkit.backoff import Backoff
from schedkit.protojson import FormErrors, from_json
from schedproto.v1 import run_pb2
from schedproto.v1 import run_service_pb2 as wire


class Runs:
    """`client.runs`. Every call raises `ApiError`; `deadline` is in seconds, and a run is
    given by its id or as a `Run`.
    """

    def __init__(self, transport: Transport, namespace: str) -> None:
        self._transport = transport
        self._call = transport.call
        self._namespace = namespace

    async def get(self, run_id: Run | str, *, deadline: float | None = None) -> Run:
        """One run."""
        request = wire.GetRunRequest(run_id=run_of(run_id))
        return value_of(Run, await self._call(methods.GET_RUN, request, deadline))

    async def list(
        self,
        *,
        job: str = "",
        states: Iterable[str] = (),
        worker: str = "",
        trigger: str | None = None,
        backfill: str = "",
        parent: str = "",
        after: When | None = None,
        before: When | None = None,
        limit: int | None = None,
        deadline: float | None = None,
    ) -> AsyncIterator[Run]:
        """Yield runs, newest first; `after` and `before` are of the nominal instant; `trigger` is
        schedule, manual, submit, backfill or redrive, `backfill` an id. Children of a broadcast are
        among them if its id is given, as `parent`, or their `worker`.
        """
        filters = wire.ListRunsRequest(
            namespace=self._namespace,
            job=job,
            worker=worker,
            trigger=_trigger(trigger),
            backfill_id=backfill,
            parent_run_id=parent,
            states=_states(states),
            scheduled_after=when_message(after, "after"),
            scheduled_before=when_message(before, "before"),
        )

        async def read(size: int, token: str) -> tuple[Sequence[Message], str]:
            request = wire.ListRunsRequest(page_size=size, page_token=token)
            request.MergeFrom(filters)
            page = await self._call(methods.LIST_RUNS, request, deadline)
            return page.runs, page.next_page_token

        async for run in paging.paged(Run, read, limit):
            yield run

    async def watch(
        self, *run_ids: Run | str, job: str = "", deadline: float | None = None
    ) -> AsyncIterator[Run]:
        """Yield each change of these runs, from how they stand now, until all have ended; or of all
        runs of `job` (id or name), for ever, from those on that haven't ended.

        A broken stream is taken up again at another member; a state that was seen is not told
        twice. Of a run that changes faster than it is read, the newest state is told.

        Raises:
            DeadlineExceeded: `deadline` seconds have passed since the first was asked for, whatever
                streams there were; without one a watch has no end of its own.
            ClusterUnavailable: no endpoint answers.
        """
        if bool(run_ids) == bool(job):
            raise InvalidArgument(
                "a watch is of runs or of a job",
                reason="WRONG_ARGUMENTS",
                remedy="name one or the other; `events()` tells of all runs of the namespace",
            )
        if not job:
            watched = [run_of(one) for one in run_ids]
            found = watching.these(self._transport, watched, deadline)
        else:
            request = wire.WatchRunsRequest(namespace=self._namespace, job=job)
            found = watching.runs(self._transport, request, deadline)
        async for run in found:
            yield run

    async def events(
        self, *, job: str = "", after: str = "", deadline: float | None = None
    ) -> AsyncIterator[RunEvent]:
        """Yield each change of the runs of `job` (id or name) or of the namespace, for ever:
        `after` the cursor of an event, from an earlier stream of any member, what has changed
        since; without it first the runs that haven't ended. `deadline` as of `watch`.
        """
        request = wire.WatchRunsRequest(namespace=self._namespace, job=job, resume_after=after)
        async for event in watching.events(self._transport, request, deadline):
            yield event

    async def wait(
        self,
        run: Run | str,
        *,
        timeout: float | None = None,
        changed: Callable[[Run], Awaitable[None]] | None = None,
    ) -> Run:
        """Return the run when it has ended; it is left alone if `timeout` seconds pass first.
        `changed` is awaited with how it stands, and with each change of it until then.

        Raises:
            DeadlineExceeded: it hasn't ended by then.
        """
        run_id = run_of(run)
        last: Run | None = None
        try:
            async with asyncio.timeout(timeout):
                async for last in self.watch(run_id):
                    if changed is not None:
                        await changed(last)
                    if last.ended:
                        return last
        except TimeoutError:
            pass
        state = f"is {last.state}" if last else "was not seen"
        raise DeadlineExceeded(
            f"run {run_id} {state} after {timeout:g} s",
            reason="STILL_RUNNING",
            remedy=f"it goes on; wait again, or ask: schedctl run why {run_id}",
        )

    async def cancel(
        self, run_id: Run | str, reason: str = "", *, deadline: float | None = None
    ) -> Run:
        """End a run: at once if it waits, else by terminate and kill. Twice is fine."""
        request = wire.CancelRunRequest(run_id=run_of(run_id), reason=reason)
        return value_of(Run, await self._call(methods.CANCEL_RUN, request, deadline))

    async def retry(
        self, run_id: Run | str, *, payload: object = None, deadline: float | None = None
    ) -> Run:
        """Do a run again that failed for good, was cancelled, or waited too long: a new run, of the
        job as it is now, with `payload` instead of its own. Twice gives the same run.
        """
        request = wire.RetryRunRequest(run_id=run_of(run_id), payload=payload_message(payload))
        return value_of(Run, await self._call(methods.RETRY_RUN, request, deadline))

    async def logs(
        self,
        run_id: Run | str,
        *,
        fencing_token: int = 0,
        follow: bool = False,
        deadline: float | None = None,
    ) -> AsyncIterator[LogPiece]:
        """Yield the output of the latest attempt, or of the one with this token; with `follow` as
        it comes, attempt after attempt, until the run has ended (or this attempt of it). NotFound
        where no attempt of it has this token.

        A broken stream is taken up again where it broke.
        """
        request = wire.ReadLogsRequest(
            run_id=run_of(run_id), fencing_token=_token(fencing_token), follow=follow
        )
        reached: dict[tuple[int, int], int] = {}
        backoff = Backoff(0.1, 2.0)
        limit = self._transport.settings.timeout if deadline is None and not follow else deadline
        while True:
            try:
                async for piece in self._transport.stream(methods.READ_LOGS, request, limit):
                    backoff.reset()
                    stream = piece.fencing_token, piece.stream
                    seen, end = reached.get(stream, 0), piece.offset + len(piece.data)
                    if piece.note:
                        yield value_of(LogPiece, piece)
                        continue
                    if piece.data and end <= seen:
                        continue
                    reached[stream] = end
                    if piece.offset < seen:
                        piece.data, piece.offset = piece.data[seen - piece.offset :], seen
                    yield value_of(LogPiece, piece)
            except ClusterUnavailable as failure:
                if failure.reason in NOBODY:
                    raise
                await asyncio.sleep(backoff.next())
            else:
                return

    async def attempts(
        self, run_id: Run | str, *, deadline: float | None = None
    ) -> tuple[Attempt, ...]:
        """Every try and every handing out that was lost."""
        request = wire.ListAttemptsRequest(run_id=run_of(run_id))
        answer = await self._call(methods.LIST_ATTEMPTS, request, deadline)
        return tuple(value_of(Attempt, one) for one in answer.attempts)

    async def why(self, run_id: Run | str, *, deadline: float | None = None) -> Explanation:
        """Why it waits, or why it ended so."""
        request = wire.ExplainRunRequest(run_id=run_of(run_id))
        return value_of(Explanation, await self._call(methods.EXPLAIN_RUN, request, deadline))

    async def result(self, run_id: Run | str, *, deadline: float | None = None) -> Result:
        """What it returned, of whatever size; compared with its SHA-256."""
        request = wire.GetRunResultRequest(run_id=run_of(run_id))
        answer = await self._call(methods.GET_RESULT, request, deadline)
        if answer.stored:
            content = await self._content(answer, deadline)
            if answer.json:
                answer.result.json = content.decode()
            else:
                answer.result.raw = content
        return value_of(Result, answer)

    async def _content(self, answer: run_pb2.RunResult, deadline: float | None) -> bytes:
        """What is too large for one answer."""
        request = wire.ReadResultRequest(run_id=answer.run_id)
        limit = self._transport.settings.timeout if deadline is None else deadline
        content = bytearray()
        async for piece in self._transport.stream(methods.READ_RESULT, request, limit):
            content += piece.data
        if hashlib.sha256(content).hexdigest() != answer.sha256:
            raise FailedPrecondition(
                f"what run {answer.run_id} returned came damaged: its SHA-256 differs",
                reason="OBJECT_DAMAGED",
            )
        return bytes(content)


def _token(number: int) -> int:
    try:
        return from_json({"fencing_token": number}, wire.ReadLogsRequest).fencing_token
    except FormErrors as error:
        raise from_form(error) from None


def _states(words: Iterable[str]) -> Any:
    try:
        return from_json({"states": list(words)}, wire.ListRunsRequest).states
    except FormErrors as error:
        raise from_form(error) from None


def _trigger(word: str | None) -> run_pb2.Run.Trigger.ValueType:
    if word is None:
        return run_pb2.Run.TRIGGER_UNSPECIFIED
    try:
        return from_json({"trigger": word}, wire.ListRunsRequest).trigger
    except FormErrors as error:
        raise from_form(error) from None
