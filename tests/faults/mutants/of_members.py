"""Mutants of members: what fires, who may write, what is dispatched."""

from __future__ import annotations

from collections.abc import Sequence

from faults.mutants import trials
from faults.mutants.edits import Edit
from faults.mutants.mutant import Mutant

ASSIGNING = "schedd/store/dispatch/assign.py"
FIRING = "schedd/store/timers/fire.py"
STEPS = "schedd/timers/timer_steps.py"
CATCH_UP = "schedd/core/timers/fire_plan.py"
MEMBERSHIP = "schedd/store/cluster/membership.py"

OF_MEMBERS: Sequence[Mutant] = (
    Mutant(
        "key-not-unique",
        "a run's key doesn't depend on job and scheduled time, so no conflict is detected",
        (
            Edit(
                STEPS,
                "RunKey(fire.nominal, scheduled_run_id(job, fire.nominal)),",
                'RunKey(fire.nominal, __import__("schedd.core.ids", fromlist=[""]).new_id()),',
            ),
            Edit(
                "schedd/dispatch/held_timers.py",
                "scheduled_run_ids([timer.job_id for timer in timers], at)",
                '[__import__("schedd.core.ids", fromlist=[""]).new_id() for _ in timers]',
            ),
        ),
        trials.IN_DOUBT,
        "S5",
    ),
    Mutant(
        "no-catch-up",
        "after a takeover, times that were due meanwhile are ignored",
        (
            Edit(
                CATCH_UP,
                "        if self.policy.policy is CatchUpPolicy.NONE:\n",
                "        if (following := self.compiled.next_after(last)) is not None:\n"
                "            return self._on_time((), (), following)\n"
                "        if self.policy.policy is CatchUpPolicy.NONE:\n",
            ),
        ),
        trials.MEMBERS_KILLED,
        "L1",
    ),
    Mutant(
        "merged-rows-unwritten",
        "scheduled times that don't run leave no row",
        (
            Edit(
                STEPS,
                "    merged = tuple(_merged_row(timer.job_id, times) for times in plan.merged)\n",
                "    merged: tuple[NewRun, ...] = ()\n",
            ),
        ),
        trials.MEMBERS_KILLED,
        "L1",
    ),
    Mutant(
        "no-fence",
        "an owner's transaction doesn't lock the rows of its shards",
        (
            Edit(
                "schedd/store/cluster/fence.py",
                'lock="FOR NO KEY UPDATE OF s")',
                'lock="")',
            ),
            Edit(
                "schedd/store/cluster/fence.py",
                'lock="FOR NO KEY UPDATE OF s SKIP LOCKED")',
                'lock="")',
            ),
        ),
        trials.ASLEEP,
        "S4",
    ),
    Mutant(
        "taken-from-the-living",
        "a member takes a shard whose owner isn't fenced",
        (
            Edit(
                MEMBERSHIP,
                "      AND (s.owner IS NULL OR s.owner = %(tenure)s\n"
                "           OR EXISTS (SELECT FROM tenures t"
                " WHERE t.id = s.owner AND t.fenced_at IS NOT NULL))\n",
                "",
            ),
        ),
        trials.MOVED_SLOWLY,
        "S13",
    ),
    Mutant(
        "epoch-stands",
        "taking a shard doesn't raise the shard's epoch",
        (Edit(MEMBERSHIP, "epoch = GREATEST(s.epoch + 1, {FLOOR})", "epoch = s.epoch"),),
        trials.LEADER_KILLED,
        "S3",
    ),
    Mutant(
        "tokens-restart",
        "each owner counts tokens from 1, without the epoch",
        (
            Edit(
                "schedd/cluster/ownership.py",
                "return token_of(at[1], sequence)",
                "return token_of(Epoch(1), sequence)",
            ),
        ),
        trials.LEADER_KILLED,
        "S3",
    ),
    Mutant(
        "overlap-unjudged",
        "the dispatch of runs doesn't check the overlap policy",
        (
            Edit(
                ASSIGNING,
                "    SELECT e.*, NOT e.fresh OR e.judged AND CASE\n",
                "    SELECT e.*, true OR e.judged AND CASE\n",
            ),
            Edit(
                "schedd/store/timers/fire_running.py",
                "l.job_id = b.job_id OFFSET 0) AS waits\n",
                "l.job_id = b.job_id OFFSET 0) AND false AS waits\n",
            ),
        ),
        trials.NO_FAULTS,
        "S9",
    ),
    Mutant(
        "pause-unjudged",
        "firing and dispatch don't check whether the job was paused or changed",
        (
            Edit(
                FIRING,
                "t.shard = b.shard AND t.generation = b.generation\n"
                "      AND t.due_at IS NOT DISTINCT FROM b.due_at AND t.fired = b.fired"
                " AND NOT t.paused\n",
                "t.shard = b.shard\n"
                "      AND t.due_at IS NOT DISTINCT FROM b.due_at AND t.fired = b.fired\n",
            ),
            Edit(
                "schedd/store/timers/fire_running.py",
                "t.shard IS NOT DISTINCT FROM d.shard"
                " AND t.generation IS NOT DISTINCT FROM d.generation\n",
                "t.shard IS NOT DISTINCT FROM d.shard\n",
            ),
            Edit(
                "schedd/store/timers/fire_running.py",
                "AND t.fired = 0 AND NOT t.paused\n",
                "AND t.fired = 0\n",
            ),
            Edit(
                ASSIGNING,
                "t.shard = b.shard\n      AND t.generation = b.generation\n",
                "t.shard = b.shard\n",
            ),
            Edit(
                ASSIGNING,
                "AND t.shard = d.shard AND t.generation = d.generation",
                "AND t.shard = d.shard",
            ),
            Edit(
                ASSIGNING,
                "AND t.shard = b.shard AND t.generation = b.generation OFFSET 0",
                "AND t.shard = b.shard OFFSET 0",
            ),
            Edit(
                ASSIGNING,
                "(NOT t.paused OR r.trigger IN ('MANUAL', 'SUBMIT'))\n",
                "true\n",
            ),
            Edit(
                ASSIGNING,
                "(NOT d.paused OR r.trigger IN ('MANUAL', 'SUBMIT'))\n",
                "true\n",
            ),
        ),
        trials.NO_FAULTS_UNAWARE,
        "S8",
    ),
    Mutant(
        "early",
        "members' clocks are 300 ms ahead of cluster time",
        (
            Edit(
                "schedd/runtime/cluster_clock.py",
                "        now = self._time.now(self._clock())\n",
                "        now = self._time.now(self._clock() + 0.3)\n",
            ),
        ),
        trials.NO_FAULTS,
        "S7",
    ),
    Mutant(
        "key-of-calls-ignored",
        "idempotency keys are ignored",
        (
            Edit(
                "schedd/store/statements/idempotency.py",
                "    if wanted is None:\n        return None\n",
                "    return None\n",
            ),
        ),
        trials.NO_FAULTS,
        "S11",
    ),
    Mutant(
        "kept-alive-while-hung",
        "the lease is renewed even if the main loop hangs",
        (
            Edit(
                "schedd/etcd/lease_trust.py",
                "        return now - self._beat > self._timings.interval\n",
                "        return False\n",
            ),
        ),
        trials.HUNG,
        "L1",
    ),
    Mutant(
        "dispatched-late",
        "runs that are assigned in each third second are pushed 1.2 s late",
        (
            Edit(
                "schedd/dispatch/assigner.py",
                "        await AFTER_COMMIT()\n",
                "        await AFTER_COMMIT()\n"
                '        if int(__import__("time").time()) % 3 == 0:\n'
                '            await __import__("asyncio").sleep(1.2)\n',
            ),
        ),
        trials.NO_FAULTS,
        "L2",
    ),
    Mutant(
        "takeover-late",
        "a member waits before it takes shards that had an owner",
        (
            Edit(
                "schedd/cluster/shards.py",
                "        await BEFORE_TAKE()\n",
                "        if any(seen.values()):\n"
                '            await __import__("asyncio").sleep(12)\n'
                "        await BEFORE_TAKE()\n",
            ),
        ),
        trials.LEADER_KILLED,
        "L3",
    ),
)
