"""Why does a run wait, or why did it end so: looked at in the order in which things can stop it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from schedd.api import availability, views
from schedd.api.cluster.cluster import living, lost_now
from schedd.api.runs import broadcasts
from schedd.api.runs.broadcasts import CHANGE, REFUSED
from schedd.api.services import Services
from schedd.core.checkup.workers import MAKE_ROOM
from schedd.core.dispatch.placement import Need, able, need_of
from schedd.core.ids import NO_TOKEN, IncarnationId, JobId
from schedd.core.jobs import labels
from schedd.core.jobs.definition import CatchUpPolicy, Definition, Overlap
from schedd.core.runs.lifecycle import LIVE, Reason, State
from schedd.core.runs.model import LiveRun
from schedd.core.runs.overlap import BUFFERS, limit_of, policy_of
from schedd.core.runs.records import WorkerView
from schedd.core.runs.retry import MAX_LOSSES
from schedd.core.runs.run_filter import RunFilter
from schedd.core.runs.run_records import RunRecord
from schedd.runtime import job_codec
from schedproto.v1 import run_service_pb2

Check = run_service_pb2.ExplainRunResponse.Check

ENDS: Final = {
    "OVERLAP": "another run of the job hadn't ended, and the job, or its trigger, says overlap:"
    " skip",
    "BUFFER_FULL": "another run of the job hadn't ended, and as many waited for that as overlap:"
    f" buffer_one (1) or buffer_all ({BUFFERS[Overlap.BUFFER_ALL]:,}) lets wait",
    "CALENDAR": "a calendar that the job excludes names its instant",
    "PAUSED": "its instant passed while the job, or the cluster, was paused",
    "WINDOW": "it was later than the job's catch-up window",
    "CATCH_UP_NONE": "it was late, and the job says catch_up: none",
    "EDITED": "the job was edited before it started, and a new schedule begins with the edit",
    "AFTER": "what became of the jobs that it runs after isn't what its after.when asks for",
    "START_DEADLINE": "it waited longer for a worker, for other runs of its job, or for its pool,"
    " than the job's start_deadline",
    "RUN_TIMEOUT": "it wasn't done within the job's run_timeout, all attempts and waits included",
    "EXIT_CODE": "its program ended with an exit code that means failure",
    "SIGNAL": "its program was ended by a signal",
    "HTTP_STATUS": "the answer's status doesn't mean success",
    "GRPC_STATUS": "the call's status wasn't OK",
    "EXCEPTION": "its handler raised",
    "TIMEOUT": "an attempt took longer than its timeout",
    "HEARTBEAT_TIMEOUT": "its handler was silent for longer than the job's heartbeat_timeout",
    "WORKER_LOST": "its worker was lost, and the job says delivery: at_most_once",
    "TOO_MANY_LOSSES": f"its worker was lost {MAX_LOSSES} times while it ran",
    "DONT_RETRY": "it said itself that trying again is no use",
    "CHILDREN_FAILED": "on some of the workers that it was for it didn't succeed: see `schedctl run"
    " list --parent` for its children",
    "BY_USER": "somebody cancelled it",
    "BY_OVERLAP": "a newer run of the job took its place, for overlap: cancel_other or"
    " terminate_other",
    "DELETED": "its job was deleted",
}


async def explain(services: Services, record: RunRecord) -> run_service_pb2.ExplainRunResponse:
    """The answer with what was looked at."""
    run = record.run
    if run.state not in LIVE:
        return _ended(record)
    if run.state is State.RUNNING and run.children is not None:
        return await broadcasts.explained(services, record)
    if record.armed:
        return _answer(f"It is armed: {run.worker} starts it when it is due.", [])
    if run.state is State.RUNNING:
        return _answer(f"It runs: {_under_way(record)}.", [*_blocks(services, run), *_lost(run)])
    braked = await _cluster(services)
    checks = [*_seen(services), *braked, *_waits(services, record), *_lost(run)]
    definition = await _definition(services, run.job_id)
    if definition is not None:
        said = await services.refusals.of(run.shard, run.job_id, definition.generation)
        checks += [
            *await _overlap(services, record, definition),
            *await _needs(services, record.run, definition, said),
        ]
        checks += await _pool(services, definition)
        checks += _late(services, record.run, definition)
    checks.sort(key=lambda check: check.question != REFUSED)  # it was due then, and handed out
    wrong = next((check for check in checks if check.remedy), None)
    if wrong is not None:
        reason = wrong.answer.removeprefix("yes, ").removeprefix("no, ")
        answer = _answer(f"It waits: {reason}.", checks)
        answer.refused = checks[0].question == REFUSED
        return answer
    return _answer("It waits for its turn: it is handed out next.", checks)


def _seen(services: Services) -> Iterator[Check]:
    if not services.cluster.trusted():
        yield Check(
            question="Does this member know how the cluster stands?",
            answer=availability.UNTRUSTED,
            remedy="schedctl cluster doctor",
        )


async def _cluster(services: Services) -> list[Check]:
    pause = await services.pauses.present()
    question = "Is the cluster paused?"
    if pause is None:
        return [Check(question=question, answer="no")]
    answer = f"yes, it is {views.paused(pause)}"
    remedy = "schedctl cluster resume" + " --catch-up-since T" * pause.recovering
    return [Check(question=question, answer=answer, remedy=remedy)]


def _ended(record: RunRecord) -> run_service_pb2.ExplainRunResponse:
    run = record.run
    why = ENDS.get(record.reason or "", "")
    if record.reason == Reason.WORKER_LOST and run.parent is not None:
        why = f"it is for worker {run.target} alone, which didn't come back, or was lost with it"
    if record.reason == Reason.CALENDAR and record.excluded_by:
        why = f"its instant is excluded by {record.excluded_by}"
    elif record.excluded_by:
        why += f": {record.excluded_by}"
    text = f"It ended as {run.state}" + (f" ({record.reason}): {why}" if record.reason else "")
    checks = [Check(question="What did it say?", answer=record.error)] if record.error else []
    return _answer(text + ".", [*checks, *_lost(run)])


def _blocks(services: Services, run: LiveRun) -> Iterator[Check]:
    """Handlers that block event loops of its worker: its own, or one for which it may wait."""
    for block in services.advances.blocks(run.incarnation):
        seconds = block.blocked_for.ToTimedelta().total_seconds()
        what = (
            f"for {seconds:.1f} s, at {block.place}; {block.waiting} other coroutines wait for it"
        )
        if (block.key.run_id, block.key.fencing_token) == (str(run.key.run_id), run.token):
            yield Check(
                question="Does its handler block the event loop?",
                answer=f"yes, handler {block.handler!r} has blocked it {what}",
                remedy="await in place of the blocking call, or use a plain `def`",
            )
        else:
            yield Check(
                question="Does another run block an event loop of its worker?",
                answer=f"yes, handler {block.handler!r} of run {block.key.run_id} has blocked"
                f" one {what}",
                remedy=f"schedctl run why {block.key.run_id}",
            )


def _lost(run: LiveRun) -> Iterator[Check]:
    if run.losses:
        times = "once" if run.losses == 1 else f"{run.losses} times"
        yield Check(
            question="Was its worker lost while it ran?",
            answer=f"yes, {times}; at {MAX_LOSSES} losses it fails (TOO_MANY_LOSSES)",
        )


def _under_way(record: RunRecord) -> str:
    run = record.run
    told = f"attempt {run.attempt} on {run.worker}, under token {run.token}"
    if not run.cancelling:
        return told
    newer = record.reason == Reason.BY_OVERLAP
    why = "a newer run of its job takes its place" if newer else "somebody cancelled it"
    return f"{told}; its worker is to {'kill' if run.killing else 'end'} it, for {why}"


def _waits(services: Services, record: RunRecord) -> Iterator[Check]:
    run = record.run
    if record.paused:
        name = record.job
        yield Check(
            question="Is its job paused?",
            answer=f"yes, job {name} is paused",
            remedy=f"schedctl job resume {name}",
        )
    else:
        yield Check(question="Is its job paused?", answer="no")
    left = (run.ready_at - services.clock.now()).total_seconds()
    if left > 0:
        what = "its back-off" if run.state is State.RETRYING else "its time"
        yield Check(
            question="Is it due?",
            answer=f"no, {what} ends in {left:.1f} s",
            remedy="wait, or `schedctl run cancel` it",
        )
    else:
        yield Check(question="Is it due?", answer="yes")
    view = services.cluster.view()
    owner = view.member(view.assigned.get(run.shard))
    yield Check(
        question="Has its shard an owner?",
        answer=f"shard {run.shard} is {owner.name}'s" if owner else f"shard {run.shard} has none",
        remedy="" if owner else "schedctl cluster members",
    )


async def _pool(services: Services, definition: Definition) -> list[Check]:
    if not definition.pool:
        return []
    name = definition.pool.removeprefix(f"{definition.namespace}/")
    standing = (await services.pools.standings([definition.pool])).get(definition.pool)
    question = f"Has pool {name} room?"
    if standing is None:
        remedy = f"schedctl pool set {name}"
        return [Check(question=question, answer=f"no, there is no pool {name}", remedy=remedy)]
    if standing.room:
        return [Check(question=question, answer="yes")]
    wish = "resume" if standing.paused else "set"
    return [
        Check(
            question=question,
            answer=f"no, pool {name} is full: {standing.why_full}"
            if not standing.paused
            else f"no, pool {name} is paused",
            remedy=f"wait, or schedctl pool {wish} {name}" + " --limit N" * (wish == "set"),
        )
    ]


async def _needs(
    services: Services, run: LiveRun, definition: Definition, said: Mapping[IncarnationId, str]
) -> list[Check]:
    """`said`: why workers have refused it."""
    workers = await living(services)
    need = need_of(definition, run)
    if need.worker is not None:
        return broadcasts.waits_for(need, workers, said)
    if need.each:
        need = replace(need, each=False)
        workers = [one for one in workers if not one.draining]
    fit = [one for one in workers if able(one.incarnation, need)]
    if not fit:
        return [await _no_worker(services, need, definition, workers)]
    if need_of(definition, run).each:
        answer = f"{len(fit)} can run it, and each is to have a run of its own"
        return [Check(question="Is there a worker for it?", answer=answer)]
    whys = sorted({why for one in fit if (why := said.get(one.incarnation.id)) is not None})
    able_so_far = [one for one in fit if one.incarnation.id not in said]
    if not able_so_far:
        return [_refused(len(fit), whys)]
    no = len(fit) - len(able_so_far)
    but = f", {no} {'has' if no == 1 else 'have'} refused it: {'; '.join(whys)}" if no else ""
    fit = able_so_far
    checks = [Check(question="Is there a worker for it?", answer=f"{len(fit)} can run it{but}")]
    takers = [one for one in fit if one.speaks and not (one.draining or one.refuses)]
    if not any(one.free >= definition.slots for one in takers):
        checks.append(_taken(fit, takers))
    return checks


async def _no_worker(
    services: Services, need: Need, definition: Definition, workers: Sequence[WorkerView]
) -> Check:
    """What a worker must have that none of these has, and which other one has it."""
    what = f"handler {definition.handler!r}" if definition.handler else f"{definition.action} jobs"
    if any(able(one.incarnation, replace(need, require=())) for one in workers):
        what += f" and has {labels.matches_text(need.require)}"
    elif any(able(one.incarnation, replace(need, slots=1)) for one in workers):
        most = max(one.incarnation.slots for one in workers)
        what = f"jobs of {need.slots} slots: the largest has {most}"
    anywhere = [replace(one.incarnation, namespaces=None) for one in workers]
    if any(able(one, need) for one in anywhere):
        what += f" of namespace {need.namespace!r}: that is in no certificate of theirs"
    but, remedy = "", "schedctl worker list"
    if gone := await _gone(services, need, workers):
        isnt = "is drained and isn't there" if len(gone) == 1 else "are drained and aren't there"
        but = f"; {', '.join(gone)} could, but {isnt}"
        if len(gone) == 1:
            remedy = f"start it, and schedctl worker undrain {gone[0]}"
    elif lost := [one.worker for one in (await lost_now(services)).workers if able(one, need)]:
        but = f"; {', '.join(_few(lost))} could, but {'is' if len(lost) == 1 else 'are'} lost"
        remedy = f"start worker {lost[0]} again"
    return Check(
        question="Is there a worker for it?",
        answer=f"no worker attached takes {what}{but}",
        remedy=remedy,
    )


async def _gone(services: Services, need: Need, there: Sequence[WorkerView]) -> list[str]:
    """Those that are drained and not there, and could do it as they were last."""
    names = {one.incarnation.worker for one in there}
    drained = [
        drain.worker for drain in await services.worker_store.drains() if drain.worker not in names
    ]
    if not drained:
        return []
    were = await services.worker_store.newest_of(drained)
    return sorted(one.worker for one in were if able(one, need))


def _refused(asked: int, whys: Sequence[str]) -> Check:
    """Each of so many was asked, and says that it can't."""
    return Check(
        question=REFUSED,
        answer=f"{asked} might run it, and each has refused it: {'; '.join(whys)}",
        remedy=CHANGE,
    )


def _taken(fit: Sequence[WorkerView], takers: Sequence[WorkerView]) -> Check:
    """Of workers none of which has a slot for it; `takers`: those that take work at all."""
    leaving = _few(one.incarnation.worker for one in fit if one.draining)
    silent = _few(
        f"no member hears {one.incarnation.worker}"
        if one.unheard
        else f"{one.incarnation.worker} has said nothing for {one.silent:.0f} s"
        for one in fit
        if not one.speaks and not one.draining
    )
    full = _few(
        f"{one.incarnation.worker} takes no work: {one.refuses}"
        for one in fit
        if one.refuses and one.speaks and not one.draining
    )
    if (full or silent) and not takers:
        told = f" ({', '.join(leaving)} draining)" if leaving else ""
        answer = f"no, {'; '.join(full + silent)}{told}"
        remedy = MAKE_ROOM if full else "schedctl worker list"
        return Check(question="Does one of them take work?", answer=answer, remedy=remedy)
    if not takers:
        answer = f"no, those that can are draining: {', '.join(leaving)}"
    else:
        told = "; ".join([f"{', '.join(leaving)} draining"] * bool(leaving) + full + silent)
        whose = fit[0].incarnation.worker if len(fit) == 1 else f"{len(fit)} workers"
        answer = f"no, all slots of {whose} are taken" + (f" ({told})" if told else "")
    return Check(question="Has one of them a slot?", answer=answer, remedy="schedctl worker list")


def _few(told: Iterable[str]) -> list[str]:
    """The first of them in order, and how many more there are."""
    named = sorted(told)
    return named[:NAMED] + [f"{len(named) - NAMED:,} more"] * (len(named) > NAMED)


def _late(services: Services, run: LiveRun, definition: Definition) -> list[Check]:
    """Last, for whatever else is in its way says more."""
    if not run.late:
        return []
    return [
        Check(
            question="Is it late?",
            answer=waits_late(services, definition),
            remedy="wait, or `schedctl run cancel` it",
        )
    ]


def waits_late(services: Services, definition: Definition) -> str:
    """What a late run waits for, in words."""
    behind = "behind what is due now"
    if definition.catch_up.policy is not CatchUpPolicy.ALL:
        return f"it is late, and goes {behind}"
    rate, left = services.late.release_rate, 1 - services.late.reserved
    return (
        "it is late, and waits for its release: of late runs of jobs with catch_up: all the"
        f" cluster hands out {rate:g} a second, oldest first, {behind},"
        f" in at most {left:.0%} of the slots"
    )


ARMED: Final = 100
"""Of the runs that wait, the newest of a job: what is armed, or was given back, is among them."""
NAMED: Final = 10
"""Workers that are named at most."""


async def _overlap(services: Services, record: RunRecord, definition: Definition) -> list[Check]:
    if record.apart:
        return []
    policy = policy_of(record.run, definition)
    limit = 1 if policy is not Overlap.ALLOW else 0
    if policy is definition.overlap:
        limit = limit_of(definition)
    if record.run.token != NO_TOKEN or not limit:
        return []  # it was admitted, or goes whoever else is
    job, others = str(record.run.job_id), list[RunRecord]()
    for states, most in (((State.RUNNING, State.RETRYING), 1 + limit), ((State.PENDING,), ARMED)):
        if len(others) < limit:
            wanted = RunFilter(job, states)
            there, _ = await services.store.list_runs(record.namespace, None, most, wanted)
            others += [one for one in there if one.run.token != NO_TOKEN and not one.apart]
    word = policy.lower() + (f": {limit}" if policy is Overlap.ALLOW else "")
    question = f"Are other runs of its job in its way (overlap: {word})?"
    if len(others) < limit:
        return [Check(question=question, answer="no")]
    first, state = others[0].run, Reason.ARMED if others[0].armed else others[0].state
    told = "is being cancelled" if first.cancelling else f"is {state}"
    answer = f"run {first.key.run_id} of its job {told}, and it starts when that has ended"
    return [Check(question=question, answer=answer, remedy=f"schedctl run why {first.key.run_id}")]


async def _definition(services: Services, job_id: JobId) -> Definition | None:
    stored = await services.store.definition(job_id)
    if stored is None:
        return None
    return job_codec.stored_definition(stored)


def _answer(text: str, checks: list[Check]) -> run_service_pb2.ExplainRunResponse:
    return run_service_pb2.ExplainRunResponse(answer=text, checks=checks)
