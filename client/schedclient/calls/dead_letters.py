"""Calls on dead letters (runs that failed for good) and on redrives, which run them again."""

from collections.abc import AsyncIterator, Iterable

from schedclient.calls import watching
from schedclient.calls.base import ClientCalls, id_of, new_key
from schedclient.calls.specs import When, payload_message, when_message
from schedclient.values.dead_letters import DeadLetter, DeadLetterGroup, Redrive, RedrivePlan
from schedclient.values.runs import Run
from schedproto.v1 import run_service_pb2 as wire


class DeadLetters(ClientCalls):
    """`client.dead_letters`. `client.runs.retry` runs a single one again."""

    def list(
        self,
        *,
        job: str = "",
        fingerprint: str = "",
        resolved: bool = False,
        redrive: str = "",
        limit: int | None = None,
        deadline: float | None = None,
    ) -> AsyncIterator[DeadLetter]:
        """Yield waiting dead letters, newest first. With `resolved`, redriven and discarded ones,
        too. With `redrive`, all that this redrive selected.
        """
        request = wire.ListDeadLettersRequest(
            namespace=self._namespace,
            job=job,
            fingerprint=fingerprint,
            resolved=resolved,
            redrive_id=redrive,
        )
        return self._pages(DeadLetter, request, limit, deadline)

    async def get(
        self, run_id: DeadLetter | Run | str, *, deadline: float | None = None
    ) -> DeadLetter:
        """Return the dead letter of one run, with its resolution."""
        request = wire.GetDeadLetterRequest(run_id=_run_of(run_id))
        return await self._one(DeadLetter, request, deadline)

    async def groups(
        self, *, job: str = "", deadline: float | None = None
    ) -> tuple[DeadLetterGroup, ...]:
        """Return the waiting dead letters by job and kind of error, largest group first; at most
        1,000 groups.
        """
        request = wire.ListDeadLetterGroupsRequest(namespace=self._namespace, job=job)
        return await self._all(DeadLetterGroup, request, deadline)

    async def discard(
        self,
        *,
        run_ids: Iterable[DeadLetter | Run | str] = (),
        job: str = "",
        fingerprint: str = "",
        group: DeadLetterGroup | None = None,
        all: bool = False,  # noqa: A002 - as the wire says
        until: When | None = None,
        at_most: int = 0,
        note: str = "",
        deadline: float | None = None,
    ) -> int:
        """Discard dead letters and return their number. Select with `run_ids`, with a job, a
        fingerprint or both, with one of `groups()`, or with `all`.

        `until`: only dead letters that failed at or before then. `until=group.last_died_at` selects
        those that `groups()` counted, and those whose commit was in progress. `at_most`: if more
        are selected, none is discarded (Aborted); 0: no limit. `at_most=group.count - group.queued`
        discards only those that `groups()` counted. Dead letters that a redrive has queued are
        kept.
        """
        request = wire.DiscardDeadLettersRequest(
            namespace=self._namespace,
            run_ids=[_run_of(one) for one in run_ids],
            job=job,
            fingerprint=fingerprint,
            group=_chosen(group),
            all=all,
            until=when_message(until, "until"),
            at_most=at_most,
            note=note,
        )
        discarded: int = (await self._call(request, deadline)).discarded
        return discarded

    async def redrive(
        self,
        *,
        job: str = "",
        fingerprint: str = "",
        group: DeadLetterGroup | None = None,
        all: bool = False,  # noqa: A002 - as the wire says
        until: When | None = None,
        at_most: int = 0,
        rate: float = 0.0,
        payload: object = None,
        dry_run: bool = False,
        note: str = "",
        idempotency_key: str | None = None,
        deadline: float | None = None,
    ) -> RedrivePlan:
        """Redrive dead letters: of a job, a fingerprint or both, of one of `groups()`, or `all`; at
        most `rate` per second in the whole cluster (10 if 0). `payload` replaces each run's own.
        `until` and `at_most` as for `discard`.

        A dry run returns the number only. A key is created if none is given, as for `jobs.create`.
        """
        request = wire.RedriveDeadLettersRequest(
            namespace=self._namespace,
            job=job,
            fingerprint=fingerprint,
            group=_chosen(group),
            all=all,
            until=when_message(until, "until"),
            at_most=at_most,
            rate=rate,
            payload=payload_message(payload),
            dry_run=dry_run,
            note=note,
            idempotency_key="" if dry_run else idempotency_key or new_key(),
        )
        return await self._one(RedrivePlan, request, deadline)


def _run_of(given: DeadLetter | Run | str) -> str:
    """Return the id of the run that failed for good."""
    return id_of(given, Run if isinstance(given, Run) else DeadLetter)


def _chosen(group: DeadLetterGroup | None) -> wire.ChosenGroup | None:
    if group is None:
        return None
    return wire.ChosenGroup(
        job=group.job or "", fingerprint=group.fingerprint, submitted=group.submitted
    )


class Redrives(ClientCalls):
    """`client.redrives`. A redrive is given by its id or as a `Redrive`. `dead_letters.redrive`
    creates one.
    """

    async def get(self, redrive_id: Redrive | str, *, deadline: float | None = None) -> Redrive:
        """Return a redrive, with the states of its runs."""
        request = wire.GetRedriveRequest(redrive_id=id_of(redrive_id, Redrive))
        return await self._one(Redrive, request, deadline)

    def list(
        self, *, limit: int | None = None, deadline: float | None = None
    ) -> AsyncIterator[Redrive]:
        """Yield redrives, newest first."""
        request = wire.ListRedrivesRequest(namespace=self._namespace)
        return self._pages(Redrive, request, limit, deadline)

    def watch(
        self, redrive_id: Redrive | str, *, deadline: float | None = None
    ) -> AsyncIterator[Redrive]:
        """Yield the redrive, then each change of it, until it has `ended`. A broken stream is
        resumed at another member. `deadline`, and what it raises, as for `client.runs.watch`.
        """
        request = wire.WatchRedriveRequest(redrive_id=id_of(redrive_id, Redrive))
        return watching.one(self._transport, request, deadline, Redrive, lambda one: one.ended)

    async def stop(self, redrive_id: Redrive | str, *, deadline: float | None = None) -> Redrive:
        """Stop a redrive: create no more runs until `resume`. Existing runs continue."""
        request = wire.StopRedriveRequest(redrive_id=id_of(redrive_id, Redrive))
        return await self._one(Redrive, request, deadline)

    async def resume(self, redrive_id: Redrive | str, *, deadline: float | None = None) -> Redrive:
        """Resume a redrive with its remaining dead letters."""
        request = wire.ResumeRedriveRequest(redrive_id=id_of(redrive_id, Redrive))
        return await self._one(Redrive, request, deadline)
