"""Rules of the protocol that the model can run without, by name, and their meanings.

If a rule is off, the model does what a developer would write who doesn't know the rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Rule(StrEnum):
    """A rule, by the name that `WITHOUT=` takes."""

    SHARD_ROW_FENCE = "shard-row-fence"
    TOKENS_UNDER_LOCK = "tokens-under-lock"
    DECIDE_AFTER_LOCK = "decide-after-lock"
    LOCK_ANSWER_AWAITED = "lock-answer-awaited"
    PUSH_AFTER_COMMIT = "push-after-commit"
    EPOCH_CLOCK_FLOOR = "epoch-clock-floor"
    TIMELINE = "timeline"
    TAKE_FROM_FENCED = "take-from-fenced"
    CALLS_LOCK_SHARD = "calls-lock-shard"
    MOVE_RAISES_EPOCH = "move-raises-epoch"
    MOVE_CLOCK_FLOOR = "move-clock-floor"
    SHARD_FROM_TIMER = "shard-from-timer"
    FIRE_FROM_ADVANCE = "fire-from-advance"
    UNIQUE_INSTANT = "unique-instant"
    FIRED_RUNNING_ALONE = "fired-running-alone"
    FIRED_RUNNING_IF_INSERTED = "fired-running-if-inserted"
    DATABASE_CLOCK = "database-clock"
    EARLY_ROWS_KEPT = "early-rows-kept"
    PAUSED_WHEN_BACK = "paused-when-back"
    EDITED_AWAY = "edited-away"
    EDITED_WHEN_DUE = "edited-when-due"
    EDIT_ENDS_WHAT_WAS_DUE = "edit-ends-what-was-due"
    GENERATION_AT_ASSIGN = "generation-at-assign"
    OVERLAP_AT_ASSIGN = "overlap-at-assign"
    OVERLAP_IN_STATEMENT = "overlap-in-statement"
    ADMITTED_BY_TOKEN = "admitted-by-token"
    OVERLAP_WHEN_DUE = "overlap-when-due"
    PRE_DISPATCHED_IN_TURN = "pre-dispatched-in-turn"
    INSERT_LOCKS_TIMER = "insert-locks-timer"
    DELETE_LOCKS_RUNS = "delete-locks-runs"
    OK_WAITS = "ok-waits"
    OK_ASKS_ENDED = "ok-asks-ended"
    OK_ONE_TIMELINE = "ok-one-timeline"
    START_BY = "start-by"
    JUDGED_AT_START = "judged-at-start"
    RESEND_KEEPS_START_BY = "resend-keeps-start-by"
    INCARNATION_NAMED = "incarnation-named"
    SAME_TOKEN_SAME_ANSWER = "same-token-same-answer"
    REFUSAL_FINAL = "refusal-final"
    REFUSAL_OF_ITS_OWN = "refusal-of-its-own"
    BACK_AFTER_START_BY = "back-after-start-by"
    ASKED_BACK_ANSWERED = "asked-back-answered"
    NOT_BEFORE = "not-before"
    LOWER_BOUND = "lower-bound"
    START_BY_FROM_INSTANT = "start-by-from-instant"
    BACK_AS_FRESH = "back-as-fresh"
    LOST_WAITS = "lost-waits"
    HEARTBEAT_STAMPED = "heartbeat-stamped"
    HEARTBEAT_LISTS_SPOOL = "heartbeat-lists-spool"
    BACK_COMPARES_TOKEN = "back-compares-token"
    RESULT_COMPARES_TOKEN = "result-compares-token"
    RESULT_COMPARES_STATE = "result-compares-state"
    ACKNOWLEDGE_AFTER_COMMIT = "acknowledge-after-commit"
    DIGEST_KNOWN = "digest-known"
    LIST_AFTER_ROWS = "list-after-rows"
    RESTORE_WAITS = "restore-waits"
    DELETION_WATCHED = "deletion-watched"
    LEFTOVERS_KILLED = "leftovers-killed"
    AT_MOST_ONCE_LOSS = "at-most-once-loss"
    AT_MOST_ONCE_RETURNED = "at-most-once-returned"
    LOOK_BEFORE_MAP = "look-before-map"
    MARK_COMMITTED_FIRST = "mark-committed-first"
    CONNECTION_LOOKED_AT = "connection-looked-at"
    HOLD_FROM_MARK = "hold-from-mark"
    WORKERS_WRITTEN_OFF = "workers-written-off"
    BACK_NOT_OF_LOST = "back-not-of-lost"
    REFUSAL_DOUBTED = "refusal-doubted"
    DOUBTFUL_ENDED = "doubtful-ended"
    REPORT_DOUBTED = "report-doubted"
    REPORTS_WAITED_FOR = "reports-waited-for"
    ONCE_NOT_CAUGHT_UP = "once-not-caught-up"
    ONCE_LATE_NEITHER = "once-late-neither"
    TURN_COMPARED = "turn-compared"
    TURN_GIVEN_BACK = "turn-given-back"
    TURN_OF_NEW_ROWS = "turn-of-new-rows"
    JOIN_ARRIVES_WITH_END = "join-arrives-with-end"
    JOIN_UNDER_FENCE = "join-under-fence"
    JOIN_COMPARES_ARRIVALS = "join-compares-arrivals"
    JOIN_TAKES_AWAY_AT_ONCE = "join-takes-away-at-once"
    JOIN_ID_RECKONED = "join-id-reckoned"
    JOIN_COMING_IN_ONE = "join-coming-in-one"


@dataclass(frozen=True, slots=True)
class Meaning:
    """A rule: its `place` in docs/protocol-rules.md, its text, and what happens `without` it."""

    place: str
    text: str
    without: str
    beside: Rule | None = None
    """Another rule that gives the same guarantee: both are removed together."""


R = Rule
MEANINGS: dict[Rule, Meaning] = {
    R.SHARD_ROW_FENCE: Meaning(
        "P1.1",
        "owner and epoch of a shard are compared while its row is locked",
        "only the member's own row is checked",
    ),
    R.TOKENS_UNDER_LOCK: Meaning(
        "P1.2",
        "token numbers are taken while the shard row is locked",
        "token numbers are taken before the lock",
    ),
    R.DECIDE_AFTER_LOCK: Meaning(
        "P1.1", "rows for a decision are read after the lock", "the rows are read before the lock"
    ),
    R.LOCK_ANSWER_AWAITED: Meaning(
        "P1.3",
        "only shards whose rows were really locked are written",
        "locks and writes are sent together",
    ),
    R.PUSH_AFTER_COMMIT: Meaning(
        "P1.4",
        "an assignment is sent only after a confirmed COMMIT",
        "it is also sent if the outcome of COMMIT is unknown",
    ),
    R.EPOCH_CLOCK_FLOOR: Meaning(
        "P2.7",
        "new epochs and terms are greater than the clock's seconds",
        "epochs and terms grow by one",
    ),
    R.TIMELINE: Meaning(
        "P2.6",
        "ownership of a shard ends when PostgreSQL's timeline changes",
        "ownership continues after a promotion",
    ),
    R.TAKE_FROM_FENCED: Meaning(
        "P2.5",
        "a shard is taken only if it has no owner or a fenced owner",
        "the leader's shard map is enough",
    ),
    R.CALLS_LOCK_SHARD: Meaning(
        "P3.1",
        "pause, edit, delete and move lock the shard rows first",
        "these calls lock only the timer",
    ),
    R.MOVE_RAISES_EPOCH: Meaning(
        "P3.2", "a move raises the new shard's epoch above the old shard's", "both epochs remain"
    ),
    R.MOVE_CLOCK_FLOOR: Meaning(
        "P3.2", "the epoch after a move is greater than the clock's seconds", "it grows by one"
    ),
    R.SHARD_FROM_TIMER: Meaning(
        "P3.5",
        "the shard of a run is read from the job's timer",
        "the shard is read from the run's row",
    ),
    R.FIRE_FROM_ADVANCE: Meaning(
        "P3.4",
        "one statement advances timers and inserts their runs",
        "runs are inserted first, then timers advance",
    ),
    R.UNIQUE_INSTANT: Meaning(
        "P7.1",
        "a job has one row for a scheduled time; the first row stays",
        "each firing inserts its own row",
    ),
    R.FIRED_RUNNING_ALONE: Meaning(
        "P3.6",
        "a run is fired as RUNNING only if its job has no other live run",
        "whenever a worker has a slot",
    ),
    R.FIRED_RUNNING_IF_INSERTED: Meaning(
        "P3.4",
        "a run fired as RUNNING is sent to its worker if the statement inserted it",
        "a run whose row was there already is sent, too",
    ),
    R.DATABASE_CLOCK: Meaning(
        "P3.4", "timers fire by the database's clock", "timers fire by the owner's clock"
    ),
    R.EARLY_ROWS_KEPT: Meaning(
        "P3.7",
        "no call ends a run that was created ahead of its due time",
        "a pause skips waiting runs",
    ),
    R.PAUSED_WHEN_BACK: Meaning(
        "P3.7",
        "a run that is returned unstarted during a pause is skipped",
        "the run waits as usual",
    ),
    R.EDITED_AWAY: Meaning(
        "P3.18",
        "a scheduled time that an edit removed is skipped",
        "the run starts with the new definition",
    ),
    R.EDITED_WHEN_DUE: Meaning(
        "P3.18",
        "a removed scheduled time is skipped when it is due",
        "it is skipped when the owner sees it",
    ),
    R.EDIT_ENDS_WHAT_WAS_DUE: Meaning(
        "P3.18",
        "a change of the job skips due times that the old schedule lacked",
        "the newest schedule decides later",
    ),
    R.GENERATION_AT_ASSIGN: Meaning(
        "P3.5",
        "assignment checks the job's current generation and pause",
        "the values at insertion are used",
    ),
    R.OVERLAP_AT_ASSIGN: Meaning(
        "P3.6",
        "the statement that assigns runs applies the overlap policy",
        "the policy is applied at insertion",
    ),
    R.OVERLAP_IN_STATEMENT: Meaning(
        "P3.6",
        "the statement that assigns runs also counts its own assignments",
        "it counts only committed assignments",
    ),
    R.ADMITTED_BY_TOKEN: Meaning(
        "P3.6",
        "a run counts for overlap from its first token to its end",
        "it counts only while it is RUNNING",
    ),
    R.OVERLAP_WHEN_DUE: Meaning(
        "P3.6",
        "a run is skipped for overlap only when it is due",
        "it is skipped as soon as it is considered",
    ),
    R.PRE_DISPATCHED_IN_TURN: Meaning(
        "P3.6",
        "no run is pre-dispatched while an earlier run of its job waits",
        "it is, unless a run is active",
    ),
    R.INSERT_LOCKS_TIMER: Meaning(
        "P3.1",
        "a transaction that inserts a run locks the job's timer",
        "the timer is read without a lock",
    ),
    R.DELETE_LOCKS_RUNS: Meaning(
        "P3.1",
        "delete locks the job's runs, then reads them",
        "it ends the runs that it read before",
    ),
    R.OK_WAITS: Meaning(
        "P3.8",
        "a call answers ok when no earlier attempt can start any more",
        "it answers ok after the COMMIT",
    ),
    R.OK_ASKS_ENDED: Meaning(
        "P3.8",
        "before ok, the call also waits for revoked attempts of ended runs",
        "it waits only for RUNNING runs",
    ),
    R.OK_ONE_TIMELINE: Meaning(
        "P3.13",
        "no ok across a promotion: the standby may lack the change",
        "ok as soon as nothing can start",
    ),
    R.START_BY: Meaning(
        "P4.1",
        "an assignment may start only until its start limit (start_by)",
        "it may start at any time",
    ),
    R.JUDGED_AT_START: Meaning(
        "P4.1",
        "the start limit is checked at the moment of the start",
        "it is checked when the message arrives",
    ),
    R.RESEND_KEEPS_START_BY: Meaning(
        "P4.5",
        "a repeated or forwarded assignment keeps its start limit",
        "it gets a new start limit",
    ),
    R.INCARNATION_NAMED: Meaning(
        "P4.2",
        "an assignment names the worker's incarnation",
        "any incarnation of the worker accepts it",
    ),
    R.SAME_TOKEN_SAME_ANSWER: Meaning(
        "P4.2",
        "an assignment that was accepted before gets the same answer",
        "a second copy is rejected",
    ),
    R.REFUSAL_FINAL: Meaning(
        "P4.2",
        "a rejected or revoked assignment is never accepted later",
        "a later copy is checked again",
    ),
    R.REFUSAL_OF_ITS_OWN: Meaning(
        "P4.2",
        "only the incarnation that got an assignment can reject it",
        "any incarnation of the worker can",
    ),
    R.BACK_AFTER_START_BY: Meaning(
        "P4.3",
        "only a heartbeat after start_by proves that a run never started",
        "any heartbeat proves it",
    ),
    R.ASKED_BACK_ANSWERED: Meaning(
        "P4.8",
        "a revoked run is requeued when its worker has answered",
        "it is requeued when the revoke is sent",
    ),
    R.NOT_BEFORE: Meaning(
        "P4.7", "a pre-dispatched run starts at its due time", "it starts when it arrives"
    ),
    R.LOWER_BOUND: Meaning(
        "P4.7",
        "the worker starts a run when its clock has certainly reached the due time",
        "has probably reached it",
    ),
    R.START_BY_FROM_INSTANT: Meaning(
        "P4.7",
        "the start limit is counted from the due time, also in the row",
        "in the row: from the COMMIT",
    ),
    R.BACK_AS_FRESH: Meaning(
        "P4.7",
        "a pre-dispatched run that is returned counts as never dispatched",
        "it counts for overlap",
    ),
    R.LOST_WAITS: Meaning(
        "P4.7",
        "a pre-dispatched run of a lost worker waits for its due time",
        "it may start at once",
    ),
    R.HEARTBEAT_STAMPED: Meaning(
        "P4.3", "a heartbeat carries its worker's send time", "the time of arrival is used"
    ),
    R.HEARTBEAT_LISTS_SPOOL: Meaning(
        "P4.3", "a heartbeat also lists runs with spooled results", "it lists only executing runs"
    ),
    R.BACK_COMPARES_TOKEN: Meaning(
        "P4.3", "a run is requeued only if token and state match", "only the state must match"
    ),
    R.RESULT_COMPARES_TOKEN: Meaning(
        "P5.2", "a result is accepted only if its token matches", "only the run must match"
    ),
    R.RESULT_COMPARES_STATE: Meaning(
        "P5.2", "a result is accepted only while its run is RUNNING", "the state isn't checked"
    ),
    R.ACKNOWLEDGE_AFTER_COMMIT: Meaning(
        "P5.1", "a result is acknowledged after the COMMIT", "it is acknowledged on arrival"
    ),
    R.DIGEST_KNOWN: Meaning(
        "P5.2", "a repeated result is answered OK, by its stored digest", "it is answered STALE"
    ),
    R.LIST_AFTER_ROWS: Meaning(
        "P6.4",
        "a worker is absent only in a list that was read after the rows",
        "the list was read before the rows",
        beside=R.DELETION_WATCHED,
    ),
    R.RESTORE_WAITS: Meaning(
        "P6.4",
        "after a restore of etcd, a missing key is no loss for one lease TTL",
        "a missing key is a loss",
    ),
    R.DELETION_WATCHED: Meaning(
        "P6.4",
        "a missing key counts if its deletion was seen, or after a lease TTL",
        "it counts if etcd wasn't restored",
    ),
    R.LEFTOVERS_KILLED: Meaning(
        "P6.6",
        "a starting worker kills old processes before it registers",
        "the old processes continue",
    ),
    R.AT_MOST_ONCE_LOSS: Meaning(
        "P6.8", "at_most_once: a run of a lost worker is FAILED", "the run is retried"
    ),
    R.AT_MOST_ONCE_RETURNED: Meaning(
        "P6.8", "at_most_once: a run that a drain ends is FAILED", "the run is requeued"
    ),
    R.LOOK_BEFORE_MAP: Meaning(
        "P2.9",
        "a new leader checks for lost data before its first shard map",
        "it writes the map first",
    ),
    R.MARK_COMMITTED_FIRST: Meaning(
        "P2.9",
        "a mark is stored in etcd after its COMMIT in PostgreSQL",
        "it is stored before the COMMIT",
    ),
    R.CONNECTION_LOOKED_AT: Meaning(
        "P2.9",
        "a member that saw newer data than its database has ends its tenure",
        "it uses the connection",
    ),
    R.HOLD_FROM_MARK: Meaning(
        "P2.9",
        "the pause after data loss begins at the restored mark",
        "it begins when the loss is detected",
    ),
    R.WORKERS_WRITTEN_OFF: Meaning(
        "P2.9", "after data loss, all known workers count as lost", "the workers continue"
    ),
    R.BACK_NOT_OF_LOST: Meaning(
        "P4.3",
        "a run of a lost worker never counts as not started",
        "it does if the worker doesn't list it",
    ),
    R.REFUSAL_DOUBTED: Meaning(
        "P2.9", "a rejection from before the data loss requeues no run", "it requeues the run"
    ),
    R.DOUBTFUL_ENDED: Meaning(
        "P2.9",
        "at_most_once: runs that wait in restored rows are FAILED",
        "the runs are dispatched",
    ),
    R.REPORT_DOUBTED: Meaning(
        "P2.9",
        "at_most_once: a failure with a token from before the loss isn't retried",
        "it is retried",
    ),
    R.REPORTS_WAITED_FOR: Meaning(
        "P2.9",
        "the pause after data loss waits for results that are being stored",
        "it doesn't wait",
    ),
    R.ONCE_NOT_CAUGHT_UP: Meaning(
        "P2.9",
        "at_most_once: times whose runs may have run aren't caught up",
        "the user's choice applies",
    ),
    R.ONCE_LATE_NEITHER: Meaning(
        "P2.9",
        "at_most_once: runs that were late, or not due, at the mark aren't caught up",
        "the catch-up policy applies",
    ),
    R.TURN_COMPARED: Meaning(
        "P3.15",
        "a timer fires only if its count of runs is still the count that was read",
        "it uses the read count",
    ),
    R.TURN_GIVEN_BACK: Meaning(
        "P3.15", "a run that is skipped before its dispatch doesn't count for max_runs", "it counts"
    ),
    R.TURN_OF_NEW_ROWS: Meaning(
        "P3.15", "a scheduled time that already has a row doesn't count again", "it counts again"
    ),
    R.JOIN_ARRIVES_WITH_END: Meaning(
        "P5.3", "the end of a parent and its arrival are stored together", "in two transactions"
    ),
    R.JOIN_UNDER_FENCE: Meaning(
        "P5.3", "arrivals are processed under the lock of the child's shard", "without the lock"
    ),
    R.JOIN_COMPARES_ARRIVALS: Meaning(
        "P5.3", "arrivals are locked and compared with what was read", "what was read is used"
    ),
    R.JOIN_TAKES_AWAY_AT_ONCE: Meaning(
        "P5.3",
        "inserting the child's run also deletes the arrivals",
        "they are deleted first",
    ),
    R.JOIN_ID_RECKONED: Meaning(
        "P5.3",
        "the id of the child's run is derived from job and cycle",
        "each run has a random id",
    ),
    R.JOIN_COMING_IN_ONE: Meaning(
        "P5.3", "ended and active parents are read in one statement", "in two statements"
    ),
}


def taken_out(rule: Rule) -> frozenset[Rule]:
    """Return the rules that are off when this rule is taken out."""
    beside = MEANINGS[rule].beside
    return frozenset({rule}) if beside is None else frozenset({rule, beside})
