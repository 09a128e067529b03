"""Explain why a run waits, or why it ended: checks in the order in which they can block a run."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from schedd.api import views
from schedd.api.cluster.cluster import UNTRUSTED, lost_now, running_workers
from schedd.api.services import Services
from schedd.core.dispatch.placement import Need, able, need_of
from schedd.core.dispatch.worker_refusals import Refusal, refusal_of
from schedd.core.ids import NO_TOKEN, IncarnationId
from schedd.core.jobs.definition import CatchUpPolicy, Definition, Overlap, matches_text
from schedd.core.runs.lifecycle import LIVE, Reason, State
from schedd.core.runs.model import LiveRun
from schedd.core.runs.overlap import BUFFERS, limit_of, policy_of
from schedd.core.runs.records import WorkerView
from schedd.core.runs.retry import MAX_LOSSES
from schedd.core.runs.run_records import RunFilter, RunRecord
from schedd.core.timers.cluster_pauses import Pause
from schedd.runtime.job_codec import JobDefinition
from schedproto.v1 import run_service_pb2 as wire

Check = wire.ExplainRunResponse.Check

ENDS: Final = {
    "OVERLAP": "another run of the job hadn't ended, and the job or its trigger has overlap: skip",
    "BUFFER_FULL": "another run of the job hadn't ended, and the buffer of waiting runs was full:"
    f" buffer_one (1) or buffer_all ({BUFFERS[Overlap.BUFFER_ALL]:,})",
    "CALENDAR": "a calendar excludes its scheduled time",
    "PAUSED": "its scheduled time passed while the job or the cluster was paused",
    "WINDOW": "it was later than the job's catch-up window",
    "CATCH_UP_NONE": "it was late, and the job has catch_up: none",
    "EDITED": "the job was edited before it started, and a new schedule begins with the edit",
    "AFTER": "the outcome of the parent jobs doesn't match its after.when",
    "START_DEADLINE": "it waited longer for a worker, for other runs of its job, or for its pool,"
    " than the job's start_deadline",
    "RUN_TIMEOUT": "it exceeded the job's run_timeout, including all attempts and waits",
    "EXIT_CODE": "its program ended with an exit code that means failure",
    "SIGNAL": "its program was ended by a signal",
    "HTTP_STATUS": "the status of the HTTP response doesn't mean success",
    "GRPC_STATUS": "the status of the gRPC call wasn't OK",
    "EXCEPTION": "its handler raised an exception",
    "TIMEOUT": "an attempt exceeded its timeout",
    "HEARTBEAT_TIMEOUT": "its handler sent no heartbeat within the job's heartbeat_timeout",
    "WORKER_LOST": "its worker was lost, and the job has delivery: at_most_once",
    "TOO_MANY_LOSSES": f"its worker was lost {MAX_LOSSES} times while it ran",
    "DONT_RETRY": "the action reported that a retry is useless",
    "CHILDREN_FAILED": "it didn't succeed on some of its workers: see `schedctl run list --parent`"
    " for its children",
    "BY_USER": "a user cancelled it",
    "BY_OVERLAP": "a newer run of the job replaced it: overlap is cancel_other or terminate_other",
    "DELETED": "its job was deleted",
}
"""The description of each reason."""

REFUSED: Final = "Does a worker accept the run?"
CHANGE: Final = "change the job, or start a worker that can run it; the run is offered again later"
PRE_DISPATCHED: Final = 100
"""The newest waiting runs of a job that are read: pre-dispatched and returned ones are among them.
"""
NAMED: Final = 10
"""Workers that an answer names."""
CHILDREN: Final = 20
"""Children of a broadcast that an answer lists."""


async def explain(services: Services, record: RunRecord) -> wire.ExplainRunResponse:
    run = record.run
    if run.state not in LIVE:
        return _explain_end(record)
    if run.state is State.RUNNING and run.children is not None:
        return await _explain_broadcast(services, record)
    if record.pre_dispatched:
        answer = f"The run is pre-dispatched: {run.worker} starts it when it is due."
        return wire.ExplainRunResponse(answer=answer)
    if run.state is State.RUNNING:
        checks = [*_blocks(services, run), *_lost(run)]
        answer = f"The run is in progress: {_in_progress(record)}."
        return wire.ExplainRunResponse(answer=answer, checks=checks)
    paused = await services.pauses.present()
    checks = [*_checks_of_waiting_run(services, record, paused), *_lost(run)]
    stored = await services.store.definition(run.job_id)
    if stored is not None:
        definition = JobDefinition.read(stored).parsed
        said = await services.refusals.refusals_of_job(run.shard, run.job_id, definition.generation)
        checks += await _overlap(services, record, definition)
        checks += await _needs(services, run, definition, said)
        checks += await _pool(services, definition)
        if run.late:  # last, because all others are more specific
            remedy = f"wait, or run `schedctl run cancel {run.key.run_id}`"
            checks.append(_check("Is the run late?", waits_late(services, definition), remedy))
    checks.sort(key=lambda check: check.question != REFUSED)  # it was due and dispatched then
    wrong = next((check for check in checks if check.remedy), None)
    if wrong is None:
        answer = "The run is ready: it is dispatched next."
        return wire.ExplainRunResponse(answer=answer, checks=checks)
    reason = wrong.answer.removeprefix("yes, ").removeprefix("no, ")
    return wire.ExplainRunResponse(
        answer=f"The run waits: {reason}.", checks=checks, refused=checks[0].question == REFUSED
    )


def _check(question: str, answer: str, remedy: str = "") -> Check:
    return Check(question=question, answer=answer, remedy=remedy)


def _explain_end(record: RunRecord) -> wire.ExplainRunResponse:
    run = record.run
    why = ENDS.get(record.reason or "", "")
    if record.reason == Reason.WORKER_LOST and run.parent is not None:
        why = f"it is for worker {run.target} only, which was lost"
    if record.reason == Reason.CALENDAR and record.excluded_by:
        why = f"its scheduled time is excluded by {record.excluded_by}"
    elif record.excluded_by:
        why += f": {record.excluded_by}"
    text = f"The run ended as {run.state}" + (f" ({record.reason}): {why}" if record.reason else "")
    checks = [_check("What was the error?", record.error)] if record.error else []
    return wire.ExplainRunResponse(answer=text + ".", checks=[*checks, *_lost(run)])


async def _explain_broadcast(services: Services, record: RunRecord) -> wire.ExplainRunResponse:
    """Explain a started broadcast, which no worker runs, by the states of its children."""
    wanted = RunFilter(str(record.run.job_id), parent=record.run.key.run_id)
    most = record.run.children or 0
    children, _ = await services.store.list_runs(record.namespace, None, most, wanted)
    states = Counter(each.run.state for each in children)
    counted = ", ".join(f"{states[state]} {state}" for state in State if states[state])
    what = "is being cancelled" if record.run.cancelling else "is in progress"
    left = [each.run for each in children if each.finished_at is None]
    return wire.ExplainRunResponse(
        answer=f"The run {what}: a broadcast to {len(children)} workers; children: {counted}.",
        checks=[
            _check(f"On {run.target}?", str(run.state), f"schedctl run why {run.key.run_id}")
            for run in left[:CHILDREN]
        ],
    )


def _blocks(services: Services, run: LiveRun) -> Iterator[Check]:
    """Return checks for handlers that block an event loop of the run's worker."""
    for block in services.advances.blocks(run.incarnation):
        seconds = block.blocked_for.ToTimedelta().total_seconds()
        what = f"for {seconds:.1f} s, at {block.place}; {block.waiting} other coroutines wait"
        if (block.key.run_id, block.key.fencing_token) == (str(run.key.run_id), run.token):
            yield _check(
                "Does the run's handler block the event loop?",
                f"yes, handler {block.handler!r} has blocked the event loop {what}",
                "replace the blocking call by an await, or use a plain `def`",
            )
        else:
            yield _check(
                "Does another run block an event loop of the worker?",
                f"yes, handler {block.handler!r} of run {block.key.run_id} has blocked"
                f" an event loop {what}",
                f"schedctl run why {block.key.run_id}",
            )


def _lost(run: LiveRun) -> Iterator[Check]:
    if run.losses:
        times = "once" if run.losses == 1 else f"{run.losses} times"
        yield _check(
            "Was the worker lost during the run?",
            f"yes, {times}; after {MAX_LOSSES} losses the run fails (TOO_MANY_LOSSES)",
        )


def _in_progress(record: RunRecord) -> str:
    run = record.run
    text = f"attempt {run.attempt} on {run.worker}, under token {run.token}"
    if not run.cancelling:
        return text
    newer = record.reason == Reason.BY_OVERLAP
    why = "a newer run of its job replaces it" if newer else "a user cancelled it"
    return f"{text}; its worker will {'kill' if run.killing else 'end'} it, because {why}"


def _checks_of_waiting_run(
    services: Services, record: RunRecord, pause: Pause | None
) -> Iterator[Check]:
    run = record.run
    if not services.cluster.trusted():
        question = "Is this member's view of the cluster current?"
        yield _check(question, UNTRUSTED, "schedctl cluster doctor")
    if pause is None:
        yield _check("Is the cluster paused?", "no")
    else:
        remedy = "schedctl cluster resume" + " --catch-up-since T" * pause.recovering
        yield _check("Is the cluster paused?", f"yes, it is {views.paused(pause)}", remedy)
    if record.paused:
        remedy = f"schedctl job resume {record.job}"
        yield _check("Is the job paused?", f"yes, job {record.job} is paused", remedy)
    else:
        yield _check("Is the job paused?", "no")
    left = (run.ready_at - services.clock.now()).total_seconds()
    if left > 0:
        retrying = run.state is State.RETRYING
        what = "its backoff before the next attempt ends" if retrying else "the run is due"
        remedy = f"wait, or run `schedctl run cancel {run.key.run_id}`"
        yield _check("Is the run due?", f"no, {what} in {left:.1f} s", remedy)
    else:
        yield _check("Is the run due?", "yes")
    view = services.cluster.view()
    question = "Does the shard of the job have an owner?"
    if (owner := view.member(view.assigned.get(run.shard))) is not None:
        yield _check(question, f"yes, {owner.name} owns shard {run.shard}")
    else:
        yield _check(question, f"no, shard {run.shard} has no owner", "schedctl cluster members")


async def _pool(services: Services, definition: Definition) -> list[Check]:
    if not definition.pool:
        return []
    name = definition.pool.removeprefix(f"{definition.namespace}/")
    usage = (await services.pools.usage([definition.pool])).get(definition.pool)
    question = f"Does pool {name} have capacity?"
    if usage is None:
        return [_check(question, f"no, pool {name} not found", f"schedctl pool set {name}")]
    if usage.room:
        return [_check(question, "yes")]
    if usage.paused:
        remedy = f"wait, or run `schedctl pool resume {name}`"
        return [_check(question, f"no, pool {name} is paused", remedy)]
    remedy = f"wait, or run `schedctl pool set {name} --limit N`"
    return [_check(question, f"no, pool {name} is full: {usage.why_full}", remedy)]


async def _needs(
    services: Services, run: LiveRun, definition: Definition, said: Mapping[IncarnationId, str]
) -> list[Check]:
    """Check the workers for a run. `said`: why workers have rejected it."""
    question = "Can a worker execute the run?"
    workers = await running_workers(services)
    need = need_of(definition, run)
    if need.worker is not None:
        return waits_for(need, workers, said)
    to_all = need.each
    if to_all:
        need = replace(need, each=False)
        workers = [one for one in workers if not one.draining]
    fit = [one for one in workers if able(one.incarnation, need)]
    if not fit:
        return [_check(question, *await _no_worker(services, need, definition, workers))]
    if to_all:
        return [_check(question, f"yes, {len(fit)} can, and each gets its own run")]
    whys = sorted({why for one in fit if (why := said.get(one.incarnation.id)) is not None})
    able_so_far = [one for one in fit if one.incarnation.id not in said]
    if not able_so_far:
        answer = f"no, all suitable workers ({len(fit)}) have rejected it: {'; '.join(whys)}"
        return [_check(REFUSED, answer, CHANGE)]
    no = len(fit) - len(able_so_far)
    but = f", {no} {'has' if no == 1 else 'have'} rejected it: {'; '.join(whys)}" if no else ""
    fit = able_so_far
    checks = [_check(question, f"yes, {len(fit)} can{but}")]
    takers = [one for one in fit if one.speaks and not (one.draining or one.refusal_reason)]
    if not any(one.free >= definition.slots for one in takers):
        checks.append(_taken(fit, takers))
    return checks


async def _no_worker(
    services: Services, need: Need, definition: Definition, workers: Sequence[WorkerView]
) -> tuple[str, str]:
    """Return what no running worker has, which lost or drained one has it, and the remedy."""
    what = f"handler {definition.handler!r}" if definition.handler else f"{definition.action} jobs"
    if any(able(one.incarnation, replace(need, require=())) for one in workers):
        what += f" and has {matches_text(need.require)}"
    elif any(able(one.incarnation, replace(need, slots=1)) for one in workers):
        most = max(one.incarnation.slots for one in workers)
        what = f"jobs of {need.slots} slots: the largest has {most}"
    anywhere = [replace(one.incarnation, namespaces=None) for one in workers]
    if any(able(one, need) for one in anywhere):
        what += f" of namespace {need.namespace!r}, which no worker's certificate names"
    but, remedy = "", "schedctl worker list -o wide"
    names = {one.incarnation.worker for one in workers}
    drained = [one.worker for one in await services.worker_store.drains()]
    drained = [worker for worker in drained if worker not in names]
    were = await services.worker_store.newest_of(drained) if drained else []
    if stopped := sorted(one.worker for one in were if able(one, need)):
        isnt = "is drained and stopped" if len(stopped) == 1 else "are drained and stopped"
        but = f"; {', '.join(stopped)} could, but {isnt}"
        if len(stopped) == 1:
            remedy = f"start worker {stopped[0]}, then run `schedctl worker undrain {stopped[0]}`"
    elif lost := [one.worker for one in (await lost_now(services)).workers if able(one, need)]:
        but = f"; {', '.join(_few(lost))} could, but {'is' if len(lost) == 1 else 'are'} lost"
        remedy = f"start worker {lost[0]} again"
    return f"no connected worker runs {what}{but}", remedy


def _taken(fit: Sequence[WorkerView], takers: Sequence[WorkerView]) -> Check:
    """Return the check for workers without a free slot; `takers`: those that take work at all."""
    leaving = _few(one.incarnation.worker for one in fit if one.draining)
    silent = _few(
        f"no member receives heartbeats of {one.incarnation.worker}"
        if one.heartbeats_missing
        else f"{one.incarnation.worker} has sent no heartbeat for {one.silent:.0f} s"
        for one in fit
        if not one.speaks and not one.draining
    )
    refusing = [one for one in fit if one.refusal_reason and one.speaks and not one.draining]
    full = _few(
        f"{one.incarnation.worker} accepts no runs: {one.refusal_reason}" for one in refusing
    )
    if (full or silent) and not takers:
        more = f" ({', '.join(leaving)} draining)" if leaving else ""
        answer = f"no, {'; '.join(full + silent)}{more}"
        remedy = _remedy(refusing) if full else "schedctl worker list"
        return _check("Does a suitable worker accept runs?", answer, remedy)
    question = "Is a slot free?"
    if not takers:
        answer = f"no, all suitable workers are draining: {', '.join(leaving)}"
        return _check(question, answer, "schedctl worker list")
    more = "; ".join([f"{', '.join(leaving)} draining"] * bool(leaving) + full + silent)
    whose = fit[0].incarnation.worker if len(fit) == 1 else f"{len(fit)} workers"
    answer = f"no, all slots of {whose} are in use" + (f" ({more})" if more else "")
    return _check(question, answer, _holders({one.incarnation.worker for one in takers}))


def _remedy(refusing: Sequence[WorkerView]) -> str:
    """Return a remedy for each kind of refusal, for the first worker of this kind by name."""
    remedies = dict[Refusal, str]()
    for one in sorted(refusing, key=lambda one: one.incarnation.worker):
        kind, name = refusal_of(one.refusal_reason), one.incarnation.worker
        of = f"{name}: " if len(refusing) > 1 else ""
        remedies.setdefault(kind, of + kind.remedy_for(name))
    return "; ".join(remedies.values())


def _few(texts: Iterable[str]) -> list[str]:
    """Return the first texts in order, and the number of others."""
    named = sorted(texts)
    return named[:NAMED] + [f"{len(named) - NAMED:,} more"] * (len(named) > NAMED)


def _holders(workers: Collection[str]) -> str:
    of = f" --worker {next(iter(workers))}" if len(workers) == 1 else ""
    return f"schedctl run list --state RUNNING{of}"


def waits_for(
    need: Need, workers: Sequence[WorkerView], said: Mapping[IncarnationId, str]
) -> list[Check]:
    """Check a waiting child of a broadcast, for its worker. `said`: why workers rejected it."""
    name = need.worker
    question = f"Is worker {name} available? The run is for this worker only"
    mine = [one for one in workers if one.incarnation.worker == name]
    fit = [one for one in mine if able(one.incarnation, need)]
    if not mine:
        answer = f"no, worker {name} isn't connected"
    elif not fit:
        answer = f"no, worker {name} is connected, but can't run it any more"
    elif all(one.draining for one in fit):
        answer = f"no, worker {name} is draining"
    elif all(one.heartbeats_missing for one in fit):
        answer = f"no member receives heartbeats of worker {name}"
    elif all(one.refusal_reason for one in fit):
        answer = f"worker {name} accepts no runs: {fit[0].refusal_reason}"
        remedy = refusal_of(fit[0].refusal_reason).remedy_for(fit[0].incarnation.worker)
        return [_check(question, answer, remedy)]
    elif why := next((said[one.incarnation.id] for one in fit if one.incarnation.id in said), ""):
        return [_check(REFUSED, f"worker {name} has rejected it: {why}", CHANGE)]
    else:
        checks = [_check(question, "yes")]
        if not any(one.free >= need.slots for one in fit):
            remedy = _holders({one.incarnation.worker for one in fit})
            checks.append(_check("Is a slot free?", f"no, all slots of {name} are in use", remedy))
        return checks
    return [_check(question, answer, "schedctl worker list")]


def waits_late(services: Services, definition: Definition) -> str:
    """Describe what a late run waits for."""
    if definition.catch_up.policy is not CatchUpPolicy.ALL:
        return "the run is late: runs that are due now have priority"
    rate, left = services.late.release_rate, 1 - services.late.reserved
    return (
        "the run is late: late runs of jobs with catch_up: all are dispatched"
        f" at {rate:g}/s, oldest first, after runs that are due now, in at most {left:.0%} of the"
        " slots"
    )


async def _overlap(services: Services, record: RunRecord, definition: Definition) -> list[Check]:
    if record.apart:
        return []
    policy = policy_of(record.run, definition)
    limit = 1 if policy is not Overlap.ALLOW else 0
    if policy is definition.overlap:
        limit = limit_of(definition)
    if record.run.token != NO_TOKEN or not limit:
        return []  # it was admitted already, or overlap doesn't block it
    job, others = str(record.run.job_id), list[RunRecord]()
    for states, most in (
        ((State.RUNNING, State.RETRYING), 1 + limit),
        ((State.PENDING,), PRE_DISPATCHED),
    ):
        if len(others) < limit:
            wanted = RunFilter(job, states)
            there, _ = await services.store.list_runs(record.namespace, None, most, wanted)
            others += [one for one in there if one.run.token != NO_TOKEN and not one.apart]
    word = policy.lower() + (f": {limit}" if policy is Overlap.ALLOW else "")
    question = f"Do other runs of its job block it (overlap: {word})?"
    if len(others) < limit:
        return [_check(question, "no")]
    first = others[0].run
    state = Reason.PRE_DISPATCHED if others[0].pre_dispatched else others[0].state
    status = "is being cancelled" if first.cancelling else f"is {state}"
    answer = f"yes, run {first.key.run_id} of its job {status}; it starts when that has ended"
    return [_check(question, answer, f"schedctl run why {first.key.run_id}")]
