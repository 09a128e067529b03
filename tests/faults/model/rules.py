"""The rules of the protocol that the model can do without, by name, and what each says.

One that is off is replaced by its plain reading: what one would write who hadn't thought of it.
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
    """Its `place` in docs/protocol-rules.md; what holds `within` the rule, and what is done
    `without` it.
    """

    place: str
    within: str
    without: str
    beside: Rule | None = None
    """Another rule that is enough in its stead: they are taken out together, in a weather in which
    that one alone isn't missed.
    """


R = Rule
MEANINGS: dict[Rule, Meaning] = {
    R.SHARD_ROW_FENCE: Meaning(
        "P1.1",
        "owner and epoch are compared under the shard row's lock",
        "the tenure FOR SHARE alone",
    ),
    R.TOKENS_UNDER_LOCK: Meaning(
        "P1.2", "sequence numbers are drawn under the lock", "they are drawn before it"
    ),
    R.DECIDE_AFTER_LOCK: Meaning(
        "P1.1", "what decides is read in statements after the lock", "it is read before the lock"
    ),
    R.LOCK_ANSWER_AWAITED: Meaning(
        "P1.3", "only the shards that the lock gave are written", "all is sent in one breath"
    ),
    R.PUSH_AFTER_COMMIT: Meaning(
        "P1.4", "pushed after a COMMIT that was seen", "pushed after one in doubt too"
    ),
    R.EPOCH_CLOCK_FLOOR: Meaning(
        "P2.7", "epochs and terms grow past the clock", "they grow by one"
    ),
    R.TIMELINE: Meaning(
        "P2.6", "a claim holds for one timeline of PostgreSQL", "it holds across promotions"
    ),
    R.TAKE_FROM_FENCED: Meaning(
        "P2.5", "a shard is taken when free or of a fenced tenure", "the leader's map is enough"
    ),
    R.CALLS_LOCK_SHARD: Meaning(
        "P3.1",
        "pause, edit, delete and move lock the shard rows first",
        "they lock the timer alone",
    ),
    R.MOVE_RAISES_EPOCH: Meaning(
        "P3.2", "a move raises the new shard's epoch above the old one's", "it leaves both epochs"
    ),
    R.MOVE_CLOCK_FLOOR: Meaning(
        "P3.2", "that epoch grows past the clock, as a taking's does", "it grows by one"
    ),
    R.SHARD_FROM_TIMER: Meaning(
        "P3.5", "a run's shard is read from its job's timer", "from the run, as it was inserted"
    ),
    R.FIRE_FROM_ADVANCE: Meaning(
        "P3.4", "runs are inserted from the timers that advanced", "inserted, then advanced"
    ),
    R.UNIQUE_INSTANT: Meaning(
        "P7.1", "one row for a job and instant, the first stays", "each firing inserts its own"
    ),
    R.DATABASE_CLOCK: Meaning(
        "P3.4", "the fire statement looks at the database's clock", "the owner's clock is believed"
    ),
    R.EARLY_ROWS_KEPT: Meaning(
        "P3.7", "no call ends a run that was inserted early", "a pause skips what waits"
    ),
    R.PAUSED_WHEN_BACK: Meaning(
        "P3.7", "what is out then is skipped when it comes back unstarted", "it waits as any"
    ),
    R.EDITED_AWAY: Meaning(
        "P3.18", "what an edit took out before it was due is skipped", "it runs, as edited"
    ),
    R.EDITED_WHEN_DUE: Meaning("P3.18", "it ends when it is due", "when it is looked at"),
    R.EDIT_ENDS_WHAT_WAS_DUE: Meaning(
        "P3.18", "a change ends what the schedule before it lacked", "the newest is asked, later"
    ),
    R.GENERATION_AT_ASSIGN: Meaning(
        "P3.5", "assign joins timers: generation current, not paused", "bound when it was inserted"
    ),
    R.OVERLAP_AT_ASSIGN: Meaning(
        "P3.6", "overlap is judged in the assign statement", "when the run is inserted"
    ),
    R.OVERLAP_IN_STATEMENT: Meaning(
        "P3.6", "a statement counts its own assignments too", "it sees committed ones alone"
    ),
    R.ADMITTED_BY_TOKEN: Meaning(
        "P3.6", "a run counts from its first token to its end", "only while it is RUNNING"
    ),
    R.OVERLAP_WHEN_DUE: Meaning(
        "P3.6", "nothing is skipped for overlap before it is due", "as soon as it is asked for"
    ),
    R.PRE_DISPATCHED_IN_TURN: Meaning(
        "P3.6",
        "nothing is pre-dispatched while an earlier run of its job waits",
        "unless one is admitted",
    ),
    R.INSERT_LOCKS_TIMER: Meaning(
        "P3.1", "who inserts a run holds its job's timer", "the timer is only read"
    ),
    R.DELETE_LOCKS_RUNS: Meaning(
        "P3.1", "delete locks the runs, then looks", "it ends what it saw before"
    ),
    R.OK_WAITS: Meaning(
        "P3.8", "ok waits for each attempt that may still start", "ok at the COMMIT"
    ),
    R.OK_ASKS_ENDED: Meaning(
        "P3.8", "it waits for those of runs that were taken back too", "for RUNNING ones alone"
    ),
    R.OK_ONE_TIMELINE: Meaning(
        "P3.13",
        "no ok across a promotion: the standby may lack the change",
        "ok once nothing can start",
    ),
    R.START_BY: Meaning("P4.1", "an assignment may start until its start_by", "whenever it comes"),
    R.JUDGED_AT_START: Meaning(
        "P4.1", "start_by is judged at the moment of the start", "when the frame is received"
    ),
    R.RESEND_KEEPS_START_BY: Meaning(
        "P4.5", "a frame sent on or again keeps its start_by", "it gets a new one"
    ),
    R.INCARNATION_NAMED: Meaning(
        "P4.2", "an assignment names the incarnation", "any incarnation of that name takes it"
    ),
    R.SAME_TOKEN_SAME_ANSWER: Meaning(
        "P4.2", "a token taken before is answered as before", "a second copy is refused"
    ),
    R.REFUSAL_FINAL: Meaning(
        "P4.2", "what was refused or revoked is never taken", "a later copy is judged again"
    ),
    R.REFUSAL_OF_ITS_OWN: Meaning(
        "P4.2", "only the incarnation it was given to can refuse", "any of that worker's"
    ),
    R.BACK_AFTER_START_BY: Meaning(
        "P4.3", "never started: by a heartbeat after start_by", "by any heartbeat"
    ),
    R.ASKED_BACK_ANSWERED: Meaning(
        "P4.8", "what is asked back goes back by its worker's answer", "as soon as it is asked"
    ),
    R.NOT_BEFORE: Meaning("P4.7", "what is pre-dispatched starts at its instant", "when it comes"),
    R.LOWER_BOUND: Meaning(
        "P4.7", "not before its worker's reading has surely reached it", "has likely reached it"
    ),
    R.START_BY_FROM_INSTANT: Meaning(
        "P4.7", "its start_by is counted from its instant, in its row too", "there from the COMMIT"
    ),
    R.BACK_AS_FRESH: Meaning(
        "P4.7", "pre-dispatched and given back, it is as it was before", "it counts as admitted"
    ),
    R.LOST_WAITS: Meaning(
        "P4.7", "pre-dispatched and lost, it waits for its instant", "it is ready at once"
    ),
    R.HEARTBEAT_STAMPED: Meaning(
        "P4.3", "the worker stamps its heartbeat", "the time of its arrival counts"
    ),
    R.HEARTBEAT_LISTS_SPOOL: Meaning(
        "P4.3", "a heartbeat lists what is spooled too", "only what runs"
    ),
    R.BACK_COMPARES_TOKEN: Meaning(
        "P4.3", "what goes back is compared by token and state", "by state alone"
    ),
    R.RESULT_COMPARES_TOKEN: Meaning("P5.2", "a result is accepted by its token", "by its run"),
    R.RESULT_COMPARES_STATE: Meaning(
        "P5.2", "and only while that token is RUNNING", "whatever the state"
    ),
    R.ACKNOWLEDGE_AFTER_COMMIT: Meaning(
        "P5.1", "a result is acknowledged after the COMMIT", "when it has come"
    ),
    R.DIGEST_KNOWN: Meaning(
        "P5.2", "a stored digest is answered OK again", "what isn't RUNNING is STALE"
    ),
    R.LIST_AFTER_ROWS: Meaning(
        "P6.4",
        "absence is judged on a list read after the rows",
        "on one read before",
        beside=R.DELETION_WATCHED,
    ),
    R.RESTORE_WAITS: Meaning(
        "P6.4", "a key may be missing for a TTL after a restore of etcd", "a missing key is a loss"
    ),
    R.DELETION_WATCHED: Meaning(
        "P6.4",
        "absence counts when the deletion was watched, or after a TTL",
        "unless cluster id or revision tell of a restore",
    ),
    R.LEFTOVERS_KILLED: Meaning(
        "P6.6", "leftover processes are killed before hello", "they are left to end"
    ),
    R.AT_MOST_ONCE_LOSS: Meaning(
        "P6.8", "at_most_once: lost with its worker is FAILED", "it is tried again"
    ),
    R.AT_MOST_ONCE_RETURNED: Meaning(
        "P6.8", "at_most_once: ended by a drain is FAILED", "it goes back"
    ),
    R.LOOK_BEFORE_MAP: Meaning(
        "P2.9", "a new term looks at the marks before its first map", "it maps, then looks"
    ),
    R.MARK_COMMITTED_FIRST: Meaning(
        "P2.9", "a mark is remembered once its COMMIT was seen", "remembered, then committed"
    ),
    R.CONNECTION_LOOKED_AT: Meaning(
        "P2.9", "who knew a later database ends its tenure", "a new connection is used as any"
    ),
    R.HOLD_FROM_MARK: Meaning(
        "P2.9", "the hold begins at the restored mark", "it begins when it is found"
    ),
    R.WORKERS_WRITTEN_OFF: Meaning(
        "P2.9", "the workers of a database that went back are lost", "they continue"
    ),
    R.BACK_NOT_OF_LOST: Meaning(
        "P4.3", "nothing of one written off goes back as never started", "what it doesn't list does"
    ),
    R.REFUSAL_DOUBTED: Meaning(
        "P2.9", "a refusal from before it went back gives nothing back", "as any refusal"
    ),
    R.DOUBTFUL_ENDED: Meaning(
        "P2.9", "at_most_once: what waits in restored rows is FAILED", "it is dispatched"
    ),
    R.REPORT_DOUBTED: Meaning(
        "P2.9", "at_most_once: failed with a token from before isn't tried again", "it is, as any"
    ),
    R.REPORTS_WAITED_FOR: Meaning(
        "P2.9", "the hold waits for reports that are being stored", "it doesn't"
    ),
    R.ONCE_NOT_CAUGHT_UP: Meaning(
        "P2.9", "at_most_once: never caught up on what may have run", "as was chosen"
    ),
    R.ONCE_LATE_NEITHER: Meaning(
        "P2.9", "nor on what was late, or due later, at the mark", "by its catch-up policy"
    ),
    R.TURN_COMPARED: Meaning(
        "P3.15", "a step goes by the timer's own count, or not at all", "by the count it has read"
    ),
    R.TURN_GIVEN_BACK: Meaning(
        "P3.15", "a run skipped before it was dispatched gives its turn back", "it was one of them"
    ),
    R.TURN_OF_NEW_ROWS: Meaning(
        "P3.15", "an instant whose row was there already takes no turn", "it takes another"
    ),
    R.JOIN_ARRIVES_WITH_END: Meaning(
        "P5.3", "what ends arrives in the transaction that ends it", "in one of its own, after it"
    ),
    R.JOIN_UNDER_FENCE: Meaning(
        "P5.3", "a join is judged under the lock of the child's shard", "by who read it"
    ),
    R.JOIN_COMPARES_ARRIVALS: Meaning(
        "P5.3", "what has arrived is locked, and is what was read", "what was read is judged"
    ),
    R.JOIN_TAKES_AWAY_AT_ONCE: Meaning(
        "P5.3",
        "arrivals go in the transaction that inserts the run",
        "they go, then it is inserted",
    ),
    R.JOIN_ID_RECKONED: Meaning(
        "P5.3", "a run's id is of child and cycle: its row is what was decided", "each has its own"
    ),
    R.JOIN_COMING_IN_ONE: Meaning(
        "P5.3", "who may still come is read in one statement", "who arrived, then who is under way"
    ),
}


def taken_out(rule: Rule) -> frozenset[Rule]:
    """Return the rules that are off when this rule is taken out."""
    beside = MEANINGS[rule].beside
    return frozenset({rule}) if beside is None else frozenset({rule, beside})
