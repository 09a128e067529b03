"""The schema of the first release.

- No index of `runs` names a column that a completion changes, and two thirds of each page are left
  free. So assigning and completing are HOT updates (docs/decisions, "Live runs and waiting runs").
- No foreign keys on busy tables: each insert would lock a row of the parent table.
- `CLUSTER` fills the rows that exist once: the cluster, the term, 256 shards.
"""

from alembic import op

revision = "0100"
down_revision = None
branch_labels = None
depends_on = None

compatible_from = "0100"
"""The oldest revision whose code works on this schema. Each step names it: one that only adds
keeps that of the step before; one that removes or changes what older code reads or writes names
the oldest that doesn't use it (docs/decisions, "Schema compatibility"). `schedd migrate` stores
that of the newest step.
"""

CLUSTER = """
CREATE TABLE schema_compatibility (
    one bool PRIMARY KEY DEFAULT true CHECK (one),
    compatible_from text NOT NULL
);
INSERT INTO schema_compatibility (compatible_from) VALUES ('0100');

CREATE TABLE cluster (
    one bool PRIMARY KEY DEFAULT true CHECK (one),
    cluster_id uuid NOT NULL DEFAULT gen_random_uuid(),
    paused bool NOT NULL DEFAULT false,
    switched bigint NOT NULL DEFAULT 0,
    marked_at timestamptz               -- the leader's newest mark
);
INSERT INTO cluster DEFAULT VALUES;

CREATE TABLE pauses (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    began timestamptz NOT NULL,
    paused_by text NOT NULL,
    note text NOT NULL DEFAULT '',
    ended timestamptz,
    caught_up bool NOT NULL DEFAULT false,
    lost_until timestamptz,             -- of a restored database: until when writes may be lost
    caught_up_since timestamptz         -- catch-up starts here; NULL: all or none, by caught_up
);

CREATE TABLE term (
    one bool PRIMARY KEY DEFAULT true CHECK (one),
    term bigint NOT NULL DEFAULT 0,
    leader uuid
);
INSERT INTO term DEFAULT VALUES;

CREATE TABLE tenures (
    id uuid PRIMARY KEY,
    member text NOT NULL,
    opened_at timestamptz NOT NULL,
    fenced_at timestamptz,
    unplanned bool NOT NULL DEFAULT false,  -- it ended without a shutdown
    grpc text NOT NULL DEFAULT '',
    http text NOT NULL DEFAULT '',
    version text NOT NULL DEFAULT '',
    prefix uuid                         -- id of the etcd prefix
);
CREATE INDEX tenures_unfenced ON tenures (id) WHERE fenced_at IS NULL;
CREATE INDEX tenures_unplanned ON tenures (fenced_at) WHERE unplanned;
CREATE INDEX tenures_of_member ON tenures (member, opened_at);

CREATE TABLE shards (
    id int PRIMARY KEY,
    owner uuid,
    epoch bigint NOT NULL DEFAULT 0,
    timeline int NOT NULL DEFAULT 0
) WITH (fillfactor = 20);
INSERT INTO shards SELECT generate_series(0, 255);

CREATE TABLE shard_log (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    shard int NOT NULL,
    epoch bigint NOT NULL,
    tenure uuid NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE cluster_events (           -- losses of members and workers, changes of leader
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    transaction bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    kind text NOT NULL,
    object text NOT NULL,
    actor text NOT NULL,
    reason text NOT NULL,
    detail text NOT NULL
);
CREATE INDEX cluster_events_transaction ON cluster_events (transaction);
CREATE INDEX cluster_events_at ON cluster_events (at);

CREATE TABLE incarnations (
    id uuid PRIMARY KEY,
    worker text NOT NULL,
    spool_id text NOT NULL,
    host text NOT NULL,
    version text NOT NULL,
    slots int NOT NULL,
    labels jsonb NOT NULL,
    handlers text[] NOT NULL,
    actions text[] NOT NULL,
    started_at timestamptz NOT NULL,
    lost_at timestamptz,
    namespaces text[],                  -- it takes runs of these; NULL: of all
    unplanned bool NOT NULL DEFAULT false,
    seen_at timestamptz
);
CREATE INDEX incarnations_worker ON incarnations (worker, started_at) WHERE lost_at IS NULL;
CREATE INDEX incarnations_unplanned ON incarnations (lost_at) WHERE unplanned;
CREATE INDEX incarnations_of_worker ON incarnations (worker, started_at);

CREATE TABLE drains (
    worker text PRIMARY KEY,            -- its name: a drain outlives incarnations
    drained_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    drained_by text NOT NULL,
    reason text NOT NULL
);

CREATE TABLE audit (
    seq bigserial PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor text NOT NULL,
    action text NOT NULL,
    object text NOT NULL,
    outcome text NOT NULL,
    reason text NOT NULL DEFAULT '',
    run_id uuid,
    token bigint NOT NULL DEFAULT 0,
    worker text NOT NULL DEFAULT '',
    source text NOT NULL DEFAULT '',
    before text NOT NULL DEFAULT '',    -- the object's state before and after the call
    after text NOT NULL DEFAULT ''
);
CREATE INDEX audit_action ON audit (action, seq);
CREATE INDEX audit_object ON audit (object, seq);
CREATE INDEX audit_run ON audit (run_id, seq) WHERE run_id IS NOT NULL;

CREATE TABLE access_tokens (
    token_id uuid PRIMARY KEY,
    digest bytea NOT NULL,              -- all that is stored of a token
    name text NOT NULL,
    role text NOT NULL,
    namespaces text[] NOT NULL,
    created_at timestamptz NOT NULL,
    created_by text NOT NULL,
    expires_at timestamptz NOT NULL,
    revoked_at timestamptz,
    revoked_by text NOT NULL DEFAULT '',
    parent uuid REFERENCES access_tokens ON DELETE CASCADE,  -- of a login: the token it was made by
    maker uuid REFERENCES access_tokens ON DELETE CASCADE    -- the token or login that made it
);
CREATE INDEX access_tokens_created ON access_tokens (created_at, token_id) WHERE parent IS NULL;
CREATE INDEX access_tokens_expires ON access_tokens (expires_at);
CREATE INDEX access_tokens_parent ON access_tokens (parent) WHERE parent IS NOT NULL;
CREATE INDEX access_tokens_maker ON access_tokens (maker) WHERE maker IS NOT NULL;
CREATE INDEX access_tokens_living ON access_tokens (parent, created_at)
    WHERE parent IS NOT NULL AND revoked_at IS NULL;

CREATE TABLE idempotency_keys (
    namespace text NOT NULL,
    call text NOT NULL,
    key text NOT NULL,
    digest bytea NOT NULL,
    made uuid NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (namespace, call, key)
);
CREATE INDEX idempotency_keys_age ON idempotency_keys (created_at);
"""

JOBS = """
CREATE TABLE jobs (
    job_id uuid PRIMARY KEY,
    namespace text NOT NULL,
    name text NOT NULL,
    shard int NOT NULL,
    generation int NOT NULL,
    spec bytea NOT NULL,
    ephemeral bool NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL,
    created_by text NOT NULL,
    updated_at timestamptz NOT NULL,
    pause_note text NOT NULL DEFAULT '',
    paused_by text NOT NULL DEFAULT '',
    paused_at timestamptz,
    deleted_at timestamptz,
    pool text,
    retention interval                  -- of its runs; NULL: the cluster's default
);
CREATE UNIQUE INDEX jobs_name ON jobs (namespace, name)
    WHERE deleted_at IS NULL AND NOT ephemeral;
CREATE INDEX jobs_newest ON jobs (namespace, created_at, job_id)
    WHERE deleted_at IS NULL AND NOT ephemeral;
CREATE INDEX jobs_any_name ON jobs (namespace, name);
CREATE INDEX jobs_pool ON jobs (namespace, pool) WHERE pool IS NOT NULL AND deleted_at IS NULL;
CREATE INDEX jobs_retention ON jobs (job_id) WHERE retention IS NOT NULL;

CREATE TABLE timers (
    job_id uuid PRIMARY KEY,
    shard int NOT NULL,
    due_at timestamptz,
    nominal timestamptz,
    generation int NOT NULL,
    paused bool NOT NULL DEFAULT false,
    fired int NOT NULL DEFAULT 0,       -- runs that count against max_runs
    line bigint,                        -- hash of the ready bucket, so scans read no definition
    line_generation integer             -- the generation that `line` was computed from
) WITH (fillfactor = 85);
CREATE INDEX timers_due ON timers (shard, due_at) WHERE NOT paused AND due_at IS NOT NULL;

CREATE TABLE resumptions (              -- jobs that are paused until a time
    job_id uuid PRIMARY KEY,
    shard int NOT NULL,
    resume_at timestamptz NOT NULL
);
CREATE INDEX resumptions_due ON resumptions (shard, resume_at);

CREATE TABLE failing (                  -- jobs with pause_after_failures whose newest runs failed
    job_id uuid PRIMARY KEY,
    shard int NOT NULL,
    failures int NOT NULL,              -- consecutive failures
    most int NOT NULL                   -- the number that pauses the job
);
CREATE INDEX failing_too_often ON failing (shard) WHERE failures >= most;

CREATE TABLE calendars (
    namespace text NOT NULL,
    name text NOT NULL,
    version int NOT NULL,
    updated_at timestamptz NOT NULL,
    updated_by text NOT NULL,
    deleted_at timestamptz,             -- kept, so that a new one continues its versions
    PRIMARY KEY (namespace, name)
);

CREATE TABLE calendar_versions (        -- the content of a version never changes
    namespace text NOT NULL,
    name text NOT NULL,
    version int NOT NULL,
    spec bytea NOT NULL,
    updated_at timestamptz NOT NULL,
    updated_by text NOT NULL,
    PRIMARY KEY (namespace, name, version)
);

CREATE TABLE job_calendars (            -- the calendar versions in use by each job
    job_id uuid NOT NULL,
    name text NOT NULL,
    namespace text NOT NULL,
    version int NOT NULL,
    PRIMARY KEY (job_id, name)
);
CREATE INDEX job_calendars_of ON job_calendars (namespace, name, version);

CREATE TABLE pools (
    namespace text NOT NULL,
    name text NOT NULL,
    shard int NOT NULL,                 -- of all its jobs: a change locks that row first
    run_limit int,                      -- NULL: no concurrency limit
    rate_count int,                     -- NULL: no rate limit
    rate_seconds double precision,
    version int NOT NULL DEFAULT 1,
    paused boolean NOT NULL DEFAULT false,
    pause_note text NOT NULL DEFAULT '',
    paused_by text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_by text NOT NULL,
    PRIMARY KEY (namespace, name)
);

CREATE TABLE pool_turns (               -- an assignment in a pool
    run_id uuid NOT NULL,
    token bigint NOT NULL,
    scheduled_at timestamptz NOT NULL,
    pool text NOT NULL,                 -- namespace/name
    assigned_at timestamptz NOT NULL,
    start_by timestamptz NOT NULL,
    ended boolean NOT NULL DEFAULT false,  -- it no longer counts against the limit
    counted_at timestamptz,             -- of an ended one: when it started, for the rate
    PRIMARY KEY (run_id, token)
) WITH (fillfactor = 80);
CREATE INDEX pool_turns_open ON pool_turns (pool) WHERE NOT ended;
CREATE INDEX pool_turns_recent ON pool_turns (pool, start_by);
"""

RUNS = """
CREATE TABLE runs (
    scheduled_at timestamptz NOT NULL,
    run_id uuid NOT NULL,
    job_id uuid NOT NULL,
    due_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    shard int NOT NULL,
    priority smallint NOT NULL,
    count int NOT NULL DEFAULT 1,
    scheduled_until timestamptz,
    fired_by uuid,
    trigger text NOT NULL,
    state text NOT NULL,
    ready_at timestamptz NOT NULL,
    token bigint NOT NULL DEFAULT 0,
    generation int NOT NULL DEFAULT 0,
    attempt int NOT NULL DEFAULT 0,
    losses int NOT NULL DEFAULT 0,
    assignments int NOT NULL DEFAULT 0,
    cancelling bool NOT NULL DEFAULT false,
    worker text,
    incarnation uuid,
    assigned_at timestamptz,
    start_by timestamptz,
    started_at timestamptz,
    finished_at timestamptz,
    exit_code int,
    reason text,
    digest bytea,
    error text NOT NULL DEFAULT '',
    payload bytea,
    killing bool NOT NULL DEFAULT false,  -- being canceled: kill it, don't terminate it
    overlap text,                       -- of a trigger; NULL: the job's policy
    excluded_by text,                   -- of SKIPPED (CALENDAR): the calendar, in words
    backfill uuid,                      -- the backfill that created it
    redrive_of uuid,                    -- the failed run that it repeats
    late_notified bool NOT NULL DEFAULT false,  -- its late start was notified
    parent uuid,                        -- of a broadcast's child: the broadcast
    target text,                        -- of a broadcast's child: its worker
    children int,                       -- of a broadcast that has begun
    root uuid,                          -- of a chain: the run that began the cycle; NULL: this run
    parents jsonb,                      -- of a chain's run: the parents' runs and states
    PRIMARY KEY (scheduled_at, run_id)
) PARTITION BY RANGE (scheduled_at);
CREATE INDEX runs_id ON runs (run_id);
CREATE INDEX runs_job ON runs (job_id, scheduled_at);
CREATE INDEX runs_children ON runs (parent) WHERE parent IS NOT NULL;
CREATE TABLE runs_default PARTITION OF runs DEFAULT WITH (fillfactor = 33);

CREATE TABLE live (                     -- runs that haven't ended: one narrow row each
    shard int NOT NULL,
    job_id uuid NOT NULL,
    run_id uuid NOT NULL,
    scheduled_at timestamptz NOT NULL,
    PRIMARY KEY (shard, job_id, run_id)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);

CREATE TABLE attempts (
    run_id uuid NOT NULL,
    token bigint NOT NULL,
    scheduled_at timestamptz NOT NULL,
    attempt int NOT NULL,
    generation int NOT NULL,
    state text NOT NULL,
    reason text,
    worker text NOT NULL,
    incarnation uuid NOT NULL,
    assigned_at timestamptz NOT NULL,
    start_by timestamptz NOT NULL,
    started_at timestamptz,
    finished_at timestamptz,
    exit_code int,
    error text NOT NULL DEFAULT '',
    digest bytea,
    PRIMARY KEY (run_id, token)
);

-- Assignments of lost workers that may still start there, until their start_by. The run's own row
-- has its next assignment or its end by then.
CREATE TABLE lost_assignments (
    run_id uuid NOT NULL,
    token bigint NOT NULL,
    scheduled_at timestamptz NOT NULL,
    job_id uuid NOT NULL,
    generation int NOT NULL,
    worker text NOT NULL,
    incarnation uuid NOT NULL,
    start_by timestamptz NOT NULL,
    PRIMARY KEY (run_id, token)
);
CREATE INDEX lost_assignments_start_by ON lost_assignments (start_by);

CREATE TABLE outputs (
    run_id uuid NOT NULL,
    token bigint NOT NULL,
    scheduled_at timestamptz NOT NULL,
    pieces bytea NOT NULL,
    stored bool NOT NULL DEFAULT false,  -- the result store has the whole log
    PRIMARY KEY (run_id, token)
);
CREATE INDEX outputs_oldest ON outputs (scheduled_at, run_id);

CREATE TABLE results (
    run_id uuid PRIMARY KEY,
    token bigint NOT NULL,
    scheduled_at timestamptz NOT NULL,
    payload bytea NOT NULL,
    stored bool NOT NULL DEFAULT false
);

CREATE TABLE unwanted (                 -- objects of the result store whose rows are deleted
    place text PRIMARY KEY,             -- a key; if it ends with '/', all keys below it
    shard int NOT NULL,
    since timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX unwanted_oldest ON unwanted (shard, since);

CREATE TABLE dead_letters (
    run_id uuid PRIMARY KEY,
    scheduled_at timestamptz NOT NULL,
    job_id uuid NOT NULL,
    fingerprint text NOT NULL,
    died_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    redrive uuid,                       -- the redrive that has chosen it
    resolution text,                       -- REDRIVEN or DISCARDED; NULL: it waits
    resolved_at timestamptz,
    resolved_by text NOT NULL DEFAULT '',
    became uuid,                        -- the run that repeats it
    note text NOT NULL DEFAULT ''
);
CREATE INDEX dead_letters_newest ON dead_letters (scheduled_at, run_id);
CREATE INDEX dead_letters_job ON dead_letters (job_id, scheduled_at);
CREATE INDEX dead_letters_waiting ON dead_letters (scheduled_at, run_id) WHERE resolution IS NULL;
CREATE INDEX dead_letters_redrive ON dead_letters (redrive, scheduled_at, run_id)
    WHERE redrive IS NOT NULL;
CREATE INDEX dead_letters_queued ON dead_letters (redrive, scheduled_at, run_id)
    WHERE redrive IS NOT NULL AND resolution IS NULL;

CREATE TABLE redrives (
    redrive_id uuid PRIMARY KEY,
    shard int NOT NULL,                 -- hashed from its id; the owner creates its runs
    namespace text NOT NULL,
    job text NOT NULL DEFAULT '',       -- job and fingerprint: the filter, as given
    fingerprint text NOT NULL DEFAULT '',
    rate float8 NOT NULL,               -- runs a second
    payload bytea,                      -- replaces that of each run; NULL: kept
    total int NOT NULL,                 -- dead letters that it has chosen
    made int NOT NULL DEFAULT 0,        -- runs that it has created
    open bool NOT NULL,                 -- more runs will be created
    fed_until timestamptz,              -- its rate is used up until then
    looked_at timestamptz,              -- when its owner last worked on it
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_by text NOT NULL,
    stopped_at timestamptz,
    stopped_by text NOT NULL DEFAULT '',
    finished_at timestamptz,
    submitted bool                      -- of submitted runs only, or of a job only; NULL: of both
);
CREATE INDEX redrives_open ON redrives (shard) WHERE open;
CREATE INDEX redrives_newest ON redrives (created_at, redrive_id);

CREATE TABLE backfills (
    backfill_id uuid PRIMARY KEY,
    job_id uuid NOT NULL,
    first timestamptz NOT NULL,
    last timestamptz NOT NULL,
    instants timestamptz[] NOT NULL,    -- the scheduled times, in order
    made int NOT NULL DEFAULT 0,        -- the first so many of them have a run
    open bool NOT NULL DEFAULT true,    -- more runs will be created
    overlap text,                       -- NULL: the job's policy
    max_parallel int NOT NULL,
    priority smallint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_by text NOT NULL,
    cancelled_at timestamptz,
    cancelled_by text NOT NULL DEFAULT ''
);
CREATE INDEX backfills_open ON backfills (job_id) WHERE open;
CREATE INDEX backfills_newest ON backfills (created_at, backfill_id);
CREATE INDEX backfills_job ON backfills (job_id, created_at);
"""

NOTIFICATIONS = """
CREATE TABLE notices (                  -- the state of a job between two notifications
    job_id uuid PRIMARY KEY,
    failures int NOT NULL DEFAULT 0,    -- consecutive failures
    notified bool NOT NULL DEFAULT false,  -- one of these failures was notified
    failure_at timestamptz,             -- for each kind: the time of the last or the next one
    dead_letter_at timestamptz,
    recovery_at timestamptz,
    late_at timestamptz
);

CREATE TABLE notifications (            -- the outbox: one row for each channel, until delivered
    notification_id uuid NOT NULL,
    way text NOT NULL,                  -- WEBHOOK, COMMAND or EMAIL
    shard int NOT NULL,
    job_id uuid NOT NULL,
    kind text NOT NULL,
    run_id uuid NOT NULL,               -- the newest run that it reports
    scheduled_at timestamptz NOT NULL,
    failures int NOT NULL,              -- consecutive failures
    held_back int NOT NULL,             -- events that were merged into it during the quiet period
    occurred_at timestamptz NOT NULL,
    ready_at timestamptz NOT NULL,
    next_at timestamptz NOT NULL,       -- not tried before
    tries int NOT NULL DEFAULT 0,
    tried_by uuid,                      -- the tenure that sends it now
    error text NOT NULL DEFAULT '',     -- of the last try
    PRIMARY KEY (notification_id, way)
);
CREATE INDEX notifications_next ON notifications (shard, next_at);
CREATE INDEX notifications_tried ON notifications (shard) WHERE tried_by IS NOT NULL;
CREATE INDEX notifications_job ON notifications (job_id, kind);
"""

CHAINS = """
CREATE TABLE chain_edges (              -- the child runs after the parent
    child uuid NOT NULL,
    parent uuid NOT NULL,
    PRIMARY KEY (child, parent)
);
CREATE INDEX chain_edges_parent ON chain_edges (parent);

CREATE TABLE chain_arrivals (           -- ends of parents' runs that the child isn't judged by yet
    child uuid NOT NULL,
    scheduled_at timestamptz NOT NULL,  -- of all runs of the cycle
    root uuid NOT NULL,                 -- run that began the cycle; zeros: that time's schedules
    parent uuid NOT NULL,
    run_id uuid NOT NULL,               -- the parent's run
    state text NOT NULL,                -- its terminal state
    arrived_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    look_at timestamptz NOT NULL DEFAULT clock_timestamp(),  -- not judged before
    PRIMARY KEY (child, scheduled_at, root, parent)
);
CREATE INDEX chain_arrivals_look ON chain_arrivals (look_at);
CREATE INDEX chain_arrivals_run ON chain_arrivals (run_id);

CREATE FUNCTION arrive() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM gone g JOIN chain_edges e ON e.parent = g.job_id) THEN
        RETURN NULL;
    END IF;
    INSERT INTO chain_arrivals (child, scheduled_at, root, parent, run_id, state)
    SELECT DISTINCT ON (e.child, g.scheduled_at, r.root, g.job_id)
        e.child, g.scheduled_at, r.root, g.job_id, g.run_id, r.state
    FROM gone g JOIN chain_edges e ON e.parent = g.job_id
    CROSS JOIN LATERAL (
        SELECT r.state, r.parent, r.finished_at, COALESCE(r.root, CASE r.trigger WHEN 'SCHEDULE'
            THEN '00000000-0000-0000-0000-000000000000'::uuid ELSE r.run_id END) AS root
        FROM runs r WHERE r.scheduled_at = g.scheduled_at AND r.run_id = g.run_id OFFSET 0
    ) r
    WHERE r.parent IS NULL AND r.state NOT IN ('PENDING', 'RUNNING', 'RETRYING')
    ORDER BY e.child, g.scheduled_at, r.root, g.job_id, r.finished_at DESC
    ON CONFLICT (child, scheduled_at, root, parent) DO UPDATE
        SET run_id = EXCLUDED.run_id, state = EXCLUDED.state, look_at = EXCLUDED.look_at;
    RETURN NULL;
END
$$;
CREATE TRIGGER arrive AFTER DELETE ON live REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION arrive();
"""

SERVER = """
-- Managed services refuse some of these functions to every role: NULL then, not an error.
CREATE FUNCTION schedd_timeline() RETURNS int LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF pg_is_in_recovery() THEN
        RETURN (SELECT timeline_id FROM pg_control_checkpoint());
    END IF;
    RETURN ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int;
EXCEPTION WHEN object_not_in_prerequisite_state OR insufficient_privilege
    OR undefined_function OR feature_not_supported THEN
    RETURN NULL;
END $$;
CREATE FUNCTION schedd_system_identifier() RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT system_identifier FROM pg_control_system());
EXCEPTION WHEN object_not_in_prerequisite_state OR insufficient_privilege
    OR undefined_function OR feature_not_supported THEN
    RETURN NULL;
END $$;

-- Each write probe needs a page of its own, so that a full disk shows: the padding is neither
-- compressed nor moved out of line. Unlogged: it would write 200 MB of WAL a day and member, and
-- with a publication FOR ALL TABLES each DELETE would fail without a replica identity.
CREATE UNLOGGED TABLE write_probes (padding bytea NOT NULL);
ALTER TABLE write_probes ALTER COLUMN padding SET STORAGE PLAIN;
"""


def upgrade() -> None:
    """Create everything; the database is empty."""
    for part in (CLUSTER, JOBS, RUNS, NOTIFICATIONS, CHAINS, SERVER):
        op.execute(part)


def downgrade() -> None:
    """Refuse: nothing is before it."""
    raise NotImplementedError("the first step can't be undone: drop the database instead")
