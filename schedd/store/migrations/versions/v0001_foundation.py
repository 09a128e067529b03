"""The foundation: membership, jobs, timers, runs and what hangs on them.

Revision 0001. `runs` has no index that names a column which a completion changes, and two
thirds of each page are left free, so assigning and completing are HOT updates (docs/decisions,
"Live runs and waiting runs").
No foreign keys: hot tables would lock their parents' rows at each insert.
"""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

SCHEMA = """
CREATE TABLE cluster (
    one bool PRIMARY KEY DEFAULT true CHECK (one),
    cluster_id uuid NOT NULL DEFAULT gen_random_uuid()
);
INSERT INTO cluster DEFAULT VALUES;

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
    fenced_at timestamptz
);
CREATE INDEX tenures_unfenced ON tenures (id) WHERE fenced_at IS NULL;

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
    deleted_at timestamptz
);
CREATE UNIQUE INDEX jobs_name ON jobs (namespace, name)
    WHERE deleted_at IS NULL AND NOT ephemeral;
CREATE INDEX jobs_newest ON jobs (namespace, created_at, job_id)
    WHERE deleted_at IS NULL AND NOT ephemeral;

CREATE INDEX jobs_any_name ON jobs (namespace, name);

CREATE TABLE timers (
    job_id uuid PRIMARY KEY,
    shard int NOT NULL,
    due_at timestamptz,
    nominal timestamptz,
    generation int NOT NULL,
    paused bool NOT NULL DEFAULT false
) WITH (fillfactor = 85);
CREATE INDEX timers_due ON timers (shard, due_at) WHERE NOT paused AND due_at IS NOT NULL;

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
    PRIMARY KEY (scheduled_at, run_id)
) PARTITION BY RANGE (scheduled_at);
CREATE INDEX runs_id ON runs (run_id);
CREATE INDEX runs_job ON runs (job_id, scheduled_at);
CREATE TABLE runs_default PARTITION OF runs DEFAULT WITH (fillfactor = 33);

-- Which runs haven't ended: one narrow row each, there from the fire to the end.
CREATE TABLE live (
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

CREATE TABLE outputs (
    run_id uuid NOT NULL,
    token bigint NOT NULL,
    scheduled_at timestamptz NOT NULL,
    pieces bytea NOT NULL,
    PRIMARY KEY (run_id, token)
);

CREATE TABLE results (
    run_id uuid PRIMARY KEY,
    token bigint NOT NULL,
    scheduled_at timestamptz NOT NULL,
    payload bytea NOT NULL
);

CREATE TABLE dead_letters (
    run_id uuid PRIMARY KEY,
    scheduled_at timestamptz NOT NULL,
    job_id uuid NOT NULL,
    fingerprint text NOT NULL,
    died_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX dead_letters_newest ON dead_letters (scheduled_at, run_id);
CREATE INDEX dead_letters_job ON dead_letters (job_id, scheduled_at);

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
    lost_at timestamptz
);
CREATE INDEX incarnations_worker ON incarnations (worker, started_at) WHERE lost_at IS NULL;

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
    source text NOT NULL DEFAULT ''
);
CREATE INDEX audit_action ON audit (action, seq);
CREATE INDEX audit_object ON audit (object, seq);
CREATE INDEX audit_run ON audit (run_id, seq) WHERE run_id IS NOT NULL;
"""


def upgrade() -> None:
    """Make everything; the database is empty."""
    op.execute(SCHEMA)


def downgrade() -> None:
    """There is nothing before it."""
    raise NotImplementedError("the first step can't be undone: drop the database instead")
