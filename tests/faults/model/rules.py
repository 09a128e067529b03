"""The rules of PROTOCOL that the model can do without, by name: what each says, what it prevents.

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
    GENERATION_AT_ASSIGN = "generation-at-assign"
    OVERLAP_AT_ASSIGN = "overlap-at-assign"
    OVERLAP_IN_STATEMENT = "overlap-in-statement"
    ADMITTED_BY_TOKEN = "admitted-by-token"
    INSERT_LOCKS_TIMER = "insert-locks-timer"
    DELETE_LOCKS_RUNS = "delete-locks-runs"
    OK_WAITS = "ok-waits"
    OK_ASKS_ENDED = "ok-asks-ended"
    START_BY = "start-by"
    JUDGED_AT_START = "judged-at-start"
    RESEND_KEEPS_START_BY = "resend-keeps-start-by"
    INCARNATION_NAMED = "incarnation-named"
    SAME_TOKEN_SAME_ANSWER = "same-token-same-answer"
    REFUSAL_FINAL = "refusal-final"
    REFUSAL_OF_ITS_OWN = "refusal-of-its-own"
    BACK_AFTER_START_BY = "back-after-start-by"
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


@dataclass(frozen=True, slots=True)
class Meaning:
    """`section` of PROTOCOL; what holds `within` the rule; what is done `without` it."""

    section: int
    within: str
    without: str
    beside: Rule | None = None
    """Another rule that is enough in its stead: they are taken out together, in a weather in which
    that one alone isn't missed.
    """


R = Rule
MEANINGS: dict[Rule, Meaning] = {
    R.SHARD_ROW_FENCE: Meaning(
        1, "owner and epoch are compared under the shard row's lock", "the tenure FOR SHARE alone"
    ),
    R.TOKENS_UNDER_LOCK: Meaning(
        1, "sequence numbers are drawn under the lock", "they are drawn before it"
    ),
    R.DECIDE_AFTER_LOCK: Meaning(
        1, "what decides is read in statements after the lock", "it is read before the lock"
    ),
    R.LOCK_ANSWER_AWAITED: Meaning(
        1, "only the shards that the lock gave are written", "all is sent in one breath"
    ),
    R.PUSH_AFTER_COMMIT: Meaning(
        1, "pushed after a COMMIT that was seen", "pushed after one in doubt too"
    ),
    R.EPOCH_CLOCK_FLOOR: Meaning(2, "epochs and terms grow past the clock", "they grow by one"),
    R.TIMELINE: Meaning(
        2, "a claim holds for one timeline of PostgreSQL", "it holds across promotions"
    ),
    R.TAKE_FROM_FENCED: Meaning(
        2, "a shard is taken when free or of a fenced tenure", "the leader's map is enough"
    ),
    R.CALLS_LOCK_SHARD: Meaning(
        3, "pause, edit, delete and move lock the shard rows first", "they lock the timer alone"
    ),
    R.MOVE_RAISES_EPOCH: Meaning(
        3, "a move raises the new shard's epoch above the old one's", "it leaves both epochs"
    ),
    R.MOVE_CLOCK_FLOOR: Meaning(
        3, "that epoch grows past the clock, as a taking's does", "it grows by one"
    ),
    R.SHARD_FROM_TIMER: Meaning(
        3, "a run's shard is read from its job's timer", "from the run, as it was inserted"
    ),
    R.FIRE_FROM_ADVANCE: Meaning(
        3, "runs are inserted from the timers that advanced", "inserted, then advanced"
    ),
    R.UNIQUE_INSTANT: Meaning(
        3, "one row for a job and instant, the first stays", "each firing inserts its own"
    ),
    R.DATABASE_CLOCK: Meaning(
        7, "the fire statement looks at the database's clock", "the owner's clock is believed"
    ),
    R.EARLY_ROWS_KEPT: Meaning(
        3, "no call ends a run that was inserted early", "a pause skips what waits"
    ),
    R.GENERATION_AT_ASSIGN: Meaning(
        3, "assign joins timers: generation current, not paused", "bound when it was inserted"
    ),
    R.OVERLAP_AT_ASSIGN: Meaning(
        3, "overlap is judged in the assign statement", "when the run is inserted"
    ),
    R.OVERLAP_IN_STATEMENT: Meaning(
        3, "a statement counts its own assignments too", "it sees committed ones alone"
    ),
    R.ADMITTED_BY_TOKEN: Meaning(
        3, "a run counts from its first token to its end", "only while it is RUNNING"
    ),
    R.INSERT_LOCKS_TIMER: Meaning(
        3, "who inserts a run holds its job's timer", "the timer is only read"
    ),
    R.DELETE_LOCKS_RUNS: Meaning(
        3, "delete locks the runs, then looks", "it ends what it saw before"
    ),
    R.OK_WAITS: Meaning(3, "ok waits for each attempt that may still start", "ok at the COMMIT"),
    R.OK_ASKS_ENDED: Meaning(
        3, "it waits for those of runs that were taken back too", "for RUNNING ones alone"
    ),
    R.START_BY: Meaning(4, "an assignment may start until its start_by", "whenever it comes"),
    R.JUDGED_AT_START: Meaning(
        4, "start_by is judged at the moment of the start", "when the frame is received"
    ),
    R.RESEND_KEEPS_START_BY: Meaning(
        4, "a frame sent on or again keeps its start_by", "it gets a new one"
    ),
    R.INCARNATION_NAMED: Meaning(
        4, "an assignment names the incarnation", "whoever has the name takes it"
    ),
    R.SAME_TOKEN_SAME_ANSWER: Meaning(
        4, "a token taken before is answered as before", "a second copy is refused"
    ),
    R.REFUSAL_FINAL: Meaning(
        4, "what was refused or revoked is never taken", "a later copy is looked at anew"
    ),
    R.REFUSAL_OF_ITS_OWN: Meaning(
        4, "only the incarnation it was given to can refuse", "any of that worker's"
    ),
    R.BACK_AFTER_START_BY: Meaning(
        4, "never started: by a heartbeat after start_by", "by any heartbeat"
    ),
    R.HEARTBEAT_STAMPED: Meaning(
        4, "the worker stamps its heartbeat", "the time of its arrival counts"
    ),
    R.HEARTBEAT_LISTS_SPOOL: Meaning(4, "a heartbeat lists what is spooled too", "only what runs"),
    R.BACK_COMPARES_TOKEN: Meaning(
        4, "what goes back is compared by token and state", "by state alone"
    ),
    R.RESULT_COMPARES_TOKEN: Meaning(5, "a result is accepted by its token", "by its run"),
    R.RESULT_COMPARES_STATE: Meaning(
        5, "and only while that token is RUNNING", "whatever the state"
    ),
    R.ACKNOWLEDGE_AFTER_COMMIT: Meaning(
        5, "a result is acknowledged after the COMMIT", "when it has come"
    ),
    R.DIGEST_KNOWN: Meaning(
        5, "a stored digest is answered OK again", "what isn't RUNNING is STALE"
    ),
    R.LIST_AFTER_ROWS: Meaning(
        6,
        "absence is judged on a list read after the rows",
        "on one read before",
        beside=R.DELETION_WATCHED,
    ),
    R.RESTORE_WAITS: Meaning(
        6, "a key may be missing for a TTL after a restore of etcd", "a missing key is a loss"
    ),
    R.DELETION_WATCHED: Meaning(
        6,
        "absence counts when the deletion was watched, or after a TTL",
        "unless cluster id or revision tell of a restore",
    ),
    R.LEFTOVERS_KILLED: Meaning(
        6, "leftover processes are killed before hello", "they are left to end"
    ),
    R.AT_MOST_ONCE_LOSS: Meaning(
        6, "at_most_once: lost with its worker is FAILED", "it is tried again"
    ),
    R.AT_MOST_ONCE_RETURNED: Meaning(6, "at_most_once: ended by a drain is FAILED", "it goes back"),
}


def taken_out(rule: Rule) -> frozenset[Rule]:
    """What is off when this rule is taken out."""
    beside = MEANINGS[rule].beside
    return frozenset({rule}) if beside is None else frozenset({rule, beside})
