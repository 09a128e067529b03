"""Calls on runs."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

from schedclient.calls import watching
from schedclient.calls.base import ClientCalls, id_of
from schedclient.calls.specs import When, payload_message, read_form, when_message
from schedclient.errors import (
    ClusterUnavailable,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
)
from schedclient.transport.transport import UNREACHABLE
from schedclient.values.reading import value_of
from schedclient.values.runs import Attempt, Explanation, LogPiece, Result, Run, RunEvent
from schedkit.backoff import Backoff
from schedproto.v1 import run_pb2
from schedproto.v1 import run_service_pb2 as wire


class Runs(ClientCalls):
    """`client.runs`. Every call raises `ApiError`; `deadline` is in seconds, and a run is
    given by its id or as a `Run`.
    """

    async def get(self, run_id: Run | str, *, deadline: float | None = None) -> Run:
        """Return a run."""
        return await self._one(Run, wire.GetRunRequest(run_id=id_of(run_id, Run)), deadline)

    def list(
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
        """Yield runs, newest first. `after` and `before` limit the scheduled time. `trigger` is
        schedule, manual, submit, backfill or redrive; `backfill` is an id. Children of a broadcast
        are included only with its id as `parent`, or with their `worker`.
        """
        words = {"states": [*states], "trigger": trigger}
        request = read_form(words, wire.ListRunsRequest)
        request.MergeFrom(
            wire.ListRunsRequest(
                namespace=self._namespace,
                job=job,
                worker=worker,
                backfill_id=backfill,
                parent_run_id=parent,
                scheduled_after=when_message(after, "after"),
                scheduled_before=when_message(before, "before"),
            )
        )
        return self._pages(Run, request, limit, deadline)

    def watch(
        self, *run_ids: Run | str, job: str = "", deadline: float | None = None
    ) -> AsyncIterator[Run]:
        """Yield each of these runs, then each change, until all have ended. Or yield the runs of
        `job` (id or name) without end, beginning with those in progress.

        A broken stream is resumed at another member, and no state is yielded twice. If a run
        changes faster than the caller reads, only its newest state is yielded.

        Raises:
            DeadlineExceeded: `deadline` seconds have passed since the call, over all streams.
                Without a deadline a watch doesn't end.
            ClusterUnavailable: no endpoint answers.
        """
        if bool(run_ids) == bool(job):
            raise InvalidArgument(
                "watch needs either runs or a job, and not both",
                reason="WRONG_ARGUMENTS",
                remedy="pass ids of runs or a job; to watch all runs of the namespace, use"
                " `events()`",
            )
        if not job:
            watched = [id_of(one, Run) for one in run_ids]
            found = watching.watch_runs(self._transport, watched, deadline)
        else:
            request = wire.WatchRunsRequest(namespace=self._namespace, job=job)
            found = watching.runs(self._transport, request, deadline)
        return found

    def events(
        self, *, job: str = "", after: str = "", deadline: float | None = None
    ) -> AsyncIterator[RunEvent]:
        """Yield each change of the runs of `job` (id or name) or of the namespace, without end.
        `after`: the cursor of an event of any member; yields the changes since then. Without it,
        the runs in progress are yielded first. `deadline` as for `watch`.
        """
        request = wire.WatchRunsRequest(namespace=self._namespace, job=job, resume_after=after)
        return watching.events(self._transport, request, deadline)

    async def wait(
        self,
        run: Run | str,
        *,
        timeout: float | None = None,
        changed: Callable[[Run], Awaitable[None]] | None = None,
    ) -> Run:
        """Return the run when it has ended. `changed` is awaited with the current run, and with
        each later change. Raises DeadlineExceeded: `timeout` seconds have passed; the run
        continues.
        """
        run_id = id_of(run, Run)
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
        state = f"it is {last.state}" if last else "its state is unknown"
        raise DeadlineExceeded(
            f"run {run_id} hasn't ended after {timeout:g} s: {state}",
            reason="STILL_RUNNING",
            remedy=f"the run continues; wait again, or run: schedctl run why {run_id}",
        )

    async def cancel(
        self, run_id: Run | str, reason: str = "", *, deadline: float | None = None
    ) -> Run:
        """Cancel a run: a waiting one at once, a running one by terminate and kill. Repeating is
        safe.
        """
        request = wire.CancelRunRequest(run_id=id_of(run_id, Run), reason=reason)
        return await self._one(Run, request, deadline)

    async def retry(
        self, run_id: Run | str, *, payload: object = None, deadline: float | None = None
    ) -> Run:
        """Run again a run that failed for good, was canceled, or expired. Creates a new run of the
        current definition, with `payload` instead of its own. Repeating returns the same run.
        """
        request = wire.RetryRunRequest(run_id=id_of(run_id, Run), payload=payload_message(payload))
        return await self._one(Run, request, deadline)

    async def logs(
        self,
        run_id: Run | str,
        *,
        fencing_token: int = 0,
        follow: bool = False,
        deadline: float | None = None,
    ) -> AsyncIterator[LogPiece]:
        """Yield the output of the latest attempt, or of the attempt with this token. With `follow`,
        yield new output until the run (or this attempt) has ended. A broken stream is resumed.
        Raises NotFound: no attempt of the run has this token.
        """
        request = read_form({"fencing_token": fencing_token}, wire.ReadLogsRequest)
        request.run_id, request.follow = id_of(run_id, Run), follow
        reached: dict[tuple[int, int], int] = {}
        backoff = Backoff(0.1, 2.0)
        limit = self._transport.settings.timeout if deadline is None and not follow else deadline
        while True:
            try:
                async for piece in self._transport.stream(request, limit):
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
                if failure.reason in UNREACHABLE:
                    raise
                await asyncio.sleep(backoff.next())
            else:
                return

    async def attempts(
        self, run_id: Run | str, *, deadline: float | None = None
    ) -> tuple[Attempt, ...]:
        """Return every attempt, and every assignment that was lost."""
        request = wire.ListAttemptsRequest(run_id=id_of(run_id, Run))
        return await self._all(Attempt, request, deadline)

    async def why(self, run_id: Run | str, *, deadline: float | None = None) -> Explanation:
        """Explain why the run waits, or why it ended as it did."""
        request = wire.ExplainRunRequest(run_id=id_of(run_id, Run))
        return await self._one(Explanation, request, deadline)

    async def result(self, run_id: Run | str, *, deadline: float | None = None) -> Result:
        """Return the run's result, of any size, checked against its SHA-256."""
        request = wire.GetRunResultRequest(run_id=id_of(run_id, Run))
        answer = await self._call(request, deadline)
        if answer.stored:
            content = await self._content(answer, deadline)
            if answer.json:
                answer.result.json = content.decode()
            else:
                answer.result.raw = content
        return value_of(Result, answer)

    async def _content(self, answer: run_pb2.RunResult, deadline: float | None) -> bytes:
        """Return a result that is too large for one answer."""
        request = wire.ReadResultRequest(run_id=answer.run_id)
        limit = self._transport.settings.timeout if deadline is None else deadline
        content = bytearray()
        async for piece in self._transport.stream(request, limit):
            content += piece.data
        if hashlib.sha256(content).hexdigest() != answer.sha256:
            raise FailedPrecondition(
                f"the result of run {answer.run_id} is damaged: its SHA-256 differs",
                reason="OBJECT_DAMAGED",
                remedy="get the result again; if this error persists, check the result store",
            )
        return bytes(content)
