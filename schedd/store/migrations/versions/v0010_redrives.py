"""Redrives: what failed for good is done again, and what became of each dead letter.

Revision 0010. Only adds, so that a member of the version before goes on beside it. It makes no runs
of a redrive, which waits for an owner that does; those that are made it takes for triggered ones.
It lists dead letters that are settled as if they still waited.
"""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

compatible_from = "0004"

EXPAND = """
CREATE TABLE redrives (
    redrive_id uuid PRIMARY KEY,
    shard int NOT NULL,                    -- whose owner makes its runs: hashed from its id
    namespace text NOT NULL,
    job text NOT NULL DEFAULT '',          -- which letters were chosen, as it was said
    fingerprint text NOT NULL DEFAULT '',
    rate float8 NOT NULL,                  -- runs a second
    payload bytea,                         -- instead of that of each run
    total int NOT NULL,                    -- letters that were chosen
    made int NOT NULL DEFAULT 0,           -- runs that it made
    open bool NOT NULL,                    -- runs are to be made now
    fed_until timestamptz,                 -- its rate is used up until then
    looked_at timestamptz,                 -- by who makes its runs
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_by text NOT NULL,
    stopped_at timestamptz,
    stopped_by text NOT NULL DEFAULT '',
    finished_at timestamptz
);
CREATE INDEX redrives_open ON redrives (shard) WHERE open;
CREATE INDEX redrives_newest ON redrives (created_at, redrive_id);

ALTER TABLE dead_letters
    ADD COLUMN redrive uuid,               -- that is to do it again, or did
    ADD COLUMN settled text,               -- REDRIVEN or DISCARDED; NULL: it waits
    ADD COLUMN settled_at timestamptz,
    ADD COLUMN settled_by text NOT NULL DEFAULT '',
    ADD COLUMN became uuid,                -- the run that does it again
    ADD COLUMN note text NOT NULL DEFAULT '';
CREATE INDEX dead_letters_waiting ON dead_letters (scheduled_at, run_id) WHERE settled IS NULL;
CREATE INDEX dead_letters_redrive ON dead_letters (redrive, scheduled_at, run_id)
    WHERE redrive IS NOT NULL;
CREATE INDEX dead_letters_promised ON dead_letters (redrive, scheduled_at, run_id)
    WHERE redrive IS NOT NULL AND settled IS NULL;

ALTER TABLE runs ADD COLUMN redrive_of uuid;  -- the dead run that it does again
"""


def upgrade() -> None:
    """Add what is missing."""
    op.execute(EXPAND)


def downgrade() -> None:
    """Whoever goes back leaves the table where it is: nothing reads it."""
