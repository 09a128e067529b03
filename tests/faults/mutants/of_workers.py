"""Mutants about workers: what they start, what becomes of their results and of their losses."""

from __future__ import annotations

from collections.abc import Sequence

from faults.mutants import trials
from faults.mutants.edits import Edit
from faults.mutants.mutant import Mutant

RESULTS = "schedd/store/results/accept.py"
RESCUE = "schedd/reconcile/rescue.py"
DISPATCH = "schedd/store/reconcile/rescue.py"
ADMISSION = "workerd/core/admission.py"
COLLECT = "schedd/results/result_collector.py"
REPORTS = "schedd/results/result_decision.py"

GUARD = " AND r.token = b.token AND r.incarnation = b.sender AND r.state = b.running\n"
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
        " AND r.state = b.running\n",
    ),
)
"""A result is taken whatever its token and sender."""

OF_WORKERS: Sequence[Mutant] = (
    Mutant(
        "token-unchecked",
        "results are accepted under any token",
        OF_ANY_TOKEN,
        trials.WORKER_STOPPED,
        "S2",
    ),
    Mutant(
        "end-overwritten",
        "a late result overwrites the result of an ended run",
        (
            Edit(RESULTS, "        row.state is State.RUNNING\n", "        True\n"),
            Edit(RESULTS, "        and row.token == report.token\n", ""),
            Edit(RESULTS, "        and row.incarnation == report.sender\n", ""),
            Edit(
                RESULTS,
                GUARD,
                "\n",
            ),
        ),
        trials.WORKER_STOPPED,
        "S12",
    ),
    Mutant(
        "acknowledged-unstored",
        "results are acknowledged before the COMMIT",
        (
            Edit(
                COLLECT,
                "        verdicts = await self._store.accept([*reports.values()])"
                " if reports else []\n",
                "        for _, (one, line) in batch:\n"
                "            line.acknowledge(one.key, one.token, stale=False)\n"
                '        await __import__("asyncio").sleep(0.05)\n'
                "        verdicts = await self._store.accept([*reports.values()])"
                " if reports else []\n",
            ),
        ),
        trials.BEFORE_STORING,
        "S10",
    ),
    Mutant(
        "spool-forgotten",
        "a worker never sends results that an earlier process left in the spool",
        (
            Edit(
                "workerd/delivery/result_sender.py",
                "in self._spool.load():\n",
                "in self._spool.load()[:0]:\n",
            ),
        ),
        trials.SPOOLED,
        "L4",
    ),
    Mutant(
        "rescued-too-early",
        "runs are taken from workers whose leases are alive",
        (
            Edit(
                RESCUE,
                "await self._rescue([run for run in running if run.incarnation in nowhere])",
                "await self._rescue([run for run in running if run.incarnation in liveness.live])",
            ),
            Edit(
                DISPATCH,
                "    workers.lose(connection, gone, EventKind.WORKER_LOST, claim.tenure)\n",
                "",
            ),
        ),
        trials.NO_FAULTS,
        "S10",
    ),
    Mutant(
        "never-rescued",
        "runs of a lost worker never start elsewhere",
        (
            Edit(
                RESCUE,
                "        await self._rescue("
                "[run for run in running if run.incarnation in nowhere])\n",
                "",
            ),
        ),
        trials.WORKER_KILLED,
        "L4",
    ),
    Mutant(
        "at-most-once-again",
        "an at_most_once run is dispatched again after its worker was lost",
        (
            Edit(
                "schedd/core/runs/retry.py",
                "    given_up = _given_up(run, definition)\n"
                "    return given_up or AttemptDecision(State.RETRYING, Reason.WORKER_LOST",
                "    return AttemptDecision(State.RETRYING, Reason.WORKER_LOST",
            ),
        ),
        trials.WORKER_KILLED,
        "L5",
    ),
    Mutant(
        "started-twice",
        "a worker starts the same assignment each time that it arrives",
        (
            Edit(
                ADMISSION,
                "        if (state := self.state(key)) is not None:\n"
                "            return AlreadyTaken(state)\n",
                "",
            ),
            Edit(
                ADMISSION,
                "            if key.token == greatest:\n",
                "            if key.token < greatest:\n",
            ),
        ),
        trials.NO_FAULTS_SENT_TWICE,
        "L5",
    ),
    Mutant(
        "started-too-late",
        "a worker starts runs after `start_by` and without trust in its lease",
        (
            Edit(
                ADMISSION,
                "        if not trusted or judged > offer.start_by:\n"
                "            return RejectReason.TOO_LATE\n",
                "",
            ),
        ),
        trials.HELD,
        "S8",
    ),
    Mutant(
        "exit-code-lost",
        "the stored result differs from the result that the worker sent",
        (
            Edit(
                REPORTS,
                "        exit_code=reported.exit_code,\n",
                "        exit_code=0,\n",
            ),
        ),
        trials.NO_FAULTS,
        "S1",
    ),
    Mutant(
        "descriptors-kept",
        "each stored result leaks a file descriptor",
        (
            Edit(
                COLLECT,
                "            self._emit_verdict(report, verdict, run)\n",
                "            self._emit_verdict(report, verdict, run)\n"
                '            __import__("os").dup(0)\n',
            ),
        ),
        trials.NO_FAULTS,
        "L6",
    ),
)
