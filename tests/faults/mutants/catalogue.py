"""The mutants: what each lacks, the ride that shows it, the invariant that must be named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from faults.mutants import rides
from faults.mutants.edits import Edit
from faults.mutants.rides import Ride


@dataclass(frozen=True, slots=True)
class Mutant:
    """A build without one promise. `lacks`: in words. `caught_by`: the invariant that it breaks."""

    name: str
    lacks: str
    edits: Sequence[Edit]
    ride: Ride
    caught_by: str


RESULTS = "schedd/store/results.py"
ASSIGNING = "schedd/store/assigning.py"
FIRING = "schedd/store/firing.py"
FIRE = "schedd/owner/fire.py"
CATCH_UP = "schedd/core/catch_up.py"
RESCUE = "schedd/owner/rescue.py"
DISPATCH = "schedd/store/dispatch.py"
MEMBERSHIP = "schedd/store/membership.py"
ADMISSION = "workerd/core/admission.py"

GUARD = "      AND r.token = b.token AND r.incarnation = b.sender AND r.state = b.running\n"
OF_ANY_TOKEN = (
    Edit(
        RESULTS,
        "        row.state is State.RUNNING\n        and row.token == report.token\n"
        "        and row.incarnation == report.sender\n",
        "        row.state is State.RUNNING\n",
    ),
    Edit(
        RESULTS,
        GUARD,
        "      AND r.state = b.running\n",
    ),
)
"""A result is taken whatever its token and sender."""

MUTANTS: Sequence[Mutant] = (
    Mutant(
        "token-unchecked",
        "a result is accepted whatever its token",
        OF_ANY_TOKEN,
        rides.WORKER_STOPPED,
        "S2",
    ),
    Mutant(
        "end-overwritten",
        "a late result overwrites what has ended",
        (
            Edit(RESULTS, "        row.state is State.RUNNING\n", "        True\n"),
            Edit(RESULTS, "        and row.token == report.token\n", ""),
            Edit(RESULTS, "        and row.incarnation == report.sender\n", ""),
            Edit(
                RESULTS,
                GUARD,
                "",
            ),
        ),
        rides.WORKER_STOPPED,
        "S12",
    ),
    Mutant(
        "key-not-unique",
        "a run's key doesn't follow from its job and instant, so ON CONFLICT never meets one",
        (
            Edit(
                FIRE,
                "NewRun(RunKey(nominal, scheduled_run_id(job, nominal)), due)",
                'NewRun(RunKey(nominal, __import__("uuid").uuid4()), due)',
            ),
        ),
        rides.IN_DOUBT,
        "S5",
    ),
    Mutant(
        "no-catch-up",
        "after a takeover what fell due meanwhile is passed over",
        (
            Edit(
                CATCH_UP,
                "        if self.policy.policy is CatchUpPolicy.NONE:\n",
                "        if (following := self.compiled.next_after(last)) is not None:\n"
                "            return self._on_time((), (), following)\n"
                "        if self.policy.policy is CatchUpPolicy.NONE:\n",
            ),
        ),
        rides.LEADER_KILLED,
        "L1",
    ),
    Mutant(
        "fold-unwritten",
        "instants that don't run leave no row",
        (
            Edit(
                FIRE,
                "    folds = tuple(_fold(definition.job_id, fold) for fold in plan.folds)\n",
                "    folds: tuple[NewRun, ...] = ()\n",
            ),
        ),
        rides.LEADER_KILLED,
        "L1",
    ),
    Mutant(
        "no-fence",
        "an owner's transaction doesn't hold its shards' rows",
        (
            Edit(
                "schedd/store/fence.py",
                "ORDER BY s.id FOR NO KEY UPDATE OF s\n",
                "ORDER BY s.id\n",
            ),
        ),
        rides.ASLEEP,
        "S4",
    ),
    Mutant(
        "taken-from-the-living",
        "a shard is taken though its owner isn't fenced",
        (
            Edit(
                MEMBERSHIP,
                "      AND (s.owner IS NULL OR s.owner = %(tenure)s\n"
                "           OR EXISTS (SELECT FROM tenures t"
                " WHERE t.id = s.owner AND t.fenced_at IS NOT NULL))\n",
                "",
            ),
        ),
        rides.MOVED_SLOWLY,
        "S13",
    ),
    Mutant(
        "epoch-stands",
        "taking a shard doesn't raise its epoch",
        (Edit(MEMBERSHIP, "epoch = GREATEST(s.epoch + 1, {FLOOR})", "epoch = s.epoch"),),
        rides.LEADER_KILLED,
        "S3",
    ),
    Mutant(
        "tokens-begin-anew",
        "each owner counts tokens from one, without the epoch",
        (
            Edit(
                "schedd/owner/ownership.py",
                "return token_of(at[1], self._sequences[at])",
                "return token_of(Epoch(1), self._sequences[at])",
            ),
        ),
        rides.LEADER_KILLED,
        "S3",
    ),
    Mutant(
        "acknowledged-unstored",
        "a result is acknowledged before its COMMIT",
        (
            Edit(
                "schedd/owner/collect.py",
                "        verdicts = await self._store.accept(reports)\n",
                "        for _, (one, line) in batch:\n"
                "            line.acknowledge(one.key, one.token, stale=False)\n"
                '        await __import__("asyncio").sleep(0.05)\n'
                "        verdicts = await self._store.accept(reports)\n",
            ),
        ),
        rides.BEFORE_STORING,
        "S10",
    ),
    Mutant(
        "spool-forgotten",
        "results of an earlier process stay in the spool",
        (
            Edit(
                "workerd/courier.py",
                "in self._spool.load():\n            for result in results:\n",
                "in self._spool.load():\n            for result in results[:0]:\n",
            ),
        ),
        rides.SPOOLED,
        "L4",
    ),
    Mutant(
        "overlap-unjudged",
        "who may run at once isn't judged when runs are handed out",
        (
            Edit(
                ASSIGNING,
                "    SELECT c.*, c.token > 0 OR c.overlap_limit = 0\n",
                "    SELECT c.*, true OR c.overlap_limit = 0\n",
            ),
        ),
        rides.CALM,
        "S9",
    ),
    Mutant(
        "pause-unjudged",
        "neither firing nor assigning looks whether the job is paused or was changed",
        (
            Edit(
                FIRING,
                "t.shard = b.shard AND t.generation = b.generation\n"
                "      AND t.due_at = b.due_at AND NOT t.paused\n",
                "t.shard = b.shard\n      AND t.due_at = b.due_at\n",
            ),
            Edit(
                ASSIGNING,
                "t.shard = b.shard\n      AND t.generation = b.generation\n",
                "t.shard = b.shard\n",
            ),
            Edit(
                ASSIGNING,
                "      AND (NOT t.paused OR r.trigger IN ('MANUAL', 'SUBMIT'))\n",
                "",
            ),
        ),
        rides.CALM_UNTOLD,
        "S8",
    ),
    Mutant(
        "early",
        "members' clocks are 300 ms ahead of cluster time",
        (
            Edit(
                "schedd/cluster_clock.py",
                "        now = self._known().now(self._clock())\n",
                "        now = self._known().now(self._clock() + 0.3)\n",
            ),
        ),
        rides.CALM,
        "S7",
    ),
    Mutant(
        "key-of-calls-ignored",
        "an idempotency key is not looked at",
        (
            Edit(
                "schedd/store/idempotency.py",
                "    if wanted is None:\n        return None\n",
                "    return None\n",
            ),
        ),
        rides.CALM,
        "S11",
    ),
    Mutant(
        "rescued-too-early",
        "runs are taken from workers whose leases live",
        (
            Edit(
                RESCUE,
                "await self._rescue([run for run in running if run.incarnation not in live])",
                "await self._rescue([run for run in running if run.incarnation in live])",
            ),
            Edit(
                DISPATCH,
                '    connection.exec_driver_sql(LOSE, {"ids": arrays.ids('
                "{loss.incarnation for loss in losses})})\n",
                "",
            ),
        ),
        rides.CALM,
        "S10",
    ),
    Mutant(
        "never-rescued",
        "the runs of a worker that is gone stay its own",
        (
            Edit(
                RESCUE,
                "            await self._rescue("
                "[run for run in running if run.incarnation not in live])\n",
                "",
            ),
        ),
        rides.WORKER_KILLED,
        "L4",
    ),
    Mutant(
        "at-most-once-again",
        "an at_most_once run is handed out again after its worker was lost",
        (
            Edit(
                "schedd/core/retry.py",
                "    given_up = _given_up(run, definition)\n"
                "    return given_up or Sequel(State.RETRYING, Reason.WORKER_LOST",
                "    return Sequel(State.RETRYING, Reason.WORKER_LOST",
            ),
        ),
        rides.WORKER_KILLED,
        "L5",
    ),
    Mutant(
        "started-twice",
        "a worker takes the same assignment as often as it comes",
        (
            Edit(
                ADMISSION,
                "        if (state := self.state(key)) is not None:\n"
                "            return Known(state)\n",
                "",
            ),
            Edit(
                ADMISSION,
                "        if seen is not None and key.token <= seen.token:\n",
                "        if seen is not None and key.token < seen.token:\n",
            ),
        ),
        rides.CALM_TWICE,
        "L5",
    ),
    Mutant(
        "started-too-late",
        "a worker starts what it has, past `start_by` and without trust",
        (
            Edit(
                ADMISSION,
                "        if not trusted or judged > offer.start_by:\n"
                "            return Why.TOO_LATE\n",
                "",
            ),
        ),
        rides.HELD,
        "S8",
    ),
    Mutant(
        "kept-alive-while-hung",
        "the lease is kept whether or not the main loop goes on",
        (
            Edit(
                "schedd/etcd/trust.py",
                "        return now - self._beat > self._timings.interval\n",
                "        return False\n",
            ),
        ),
        rides.HUNG,
        "L1",
    ),
)
