"""Chains: which job runs after which, and what has ended of a cycle and isn't judged yet.

Revision 0015. Only adds, so that a member of the version before goes on beside it: it leaves jobs
alone that run after others, for their definitions are of a level that it doesn't know. What it ends
of their parents arrives all the same: a trigger of the database writes that.
"""

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

compatible_from = "0004"

EXPAND = """
CREATE TABLE chain_edges (                 -- the child runs after the parent
    child uuid NOT NULL,
    parent uuid NOT NULL,
    PRIMARY KEY (child, parent)
);
CREATE INDEX chain_edges_parent ON chain_edges (parent);

CREATE TABLE chain_arrivals (              -- a parent's run has ended; its child isn't judged yet
    child uuid NOT NULL,
    scheduled_at timestamptz NOT NULL,     -- the nominal instant of all runs of the cycle
    root uuid NOT NULL,                    -- the run that began it; zeros: that instant's schedules
    parent uuid NOT NULL,
    run_id uuid NOT NULL,                  -- the parent's
    state text NOT NULL,                   -- how it ended
    arrived_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    look_at timestamptz NOT NULL DEFAULT clock_timestamp(),  -- judged no sooner
    PRIMARY KEY (child, scheduled_at, root, parent)
);
CREATE INDEX chain_arrivals_look ON chain_arrivals (look_at);

ALTER TABLE runs ADD COLUMN root uuid;     -- of its cycle; NULL: it began one itself
ALTER TABLE runs ADD COLUMN parents jsonb; -- of a chain's run: what it was judged by

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


def upgrade() -> None:
    """Add what is missing."""
    op.execute(EXPAND)


def downgrade() -> None:
    """Whoever goes back leaves the tables where they are: nothing reads them."""
