"""Calendars, each version of them, and which of them a job's instants are computed with.

Revision 0008. Only adds, so that a member of the version before goes on beside it: it leaves jobs
alone that exclude anything (their definitions are of a later level).
"""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

compatible_from = "0004"

EXPAND = """
CREATE TABLE calendars (
    namespace text NOT NULL,
    name text NOT NULL,
    version int NOT NULL,
    updated_at timestamptz NOT NULL,
    updated_by text NOT NULL,
    deleted_at timestamptz,  -- it keeps counting where it was, if it is made anew
    PRIMARY KEY (namespace, name)
);

-- What a version says never changes.
CREATE TABLE calendar_versions (
    namespace text NOT NULL,
    name text NOT NULL,
    version int NOT NULL,
    spec bytea NOT NULL,
    updated_at timestamptz NOT NULL,
    updated_by text NOT NULL,
    PRIMARY KEY (namespace, name, version)
);

CREATE TABLE job_calendars (
    job_id uuid NOT NULL,
    name text NOT NULL,
    namespace text NOT NULL,
    version int NOT NULL,
    PRIMARY KEY (job_id, name)
);
CREATE INDEX job_calendars_of ON job_calendars (namespace, name, version);

ALTER TABLE runs ADD COLUMN excluded_by text;  -- of SKIPPED (CALENDAR): which of them, in words
"""


def upgrade() -> None:
    """Add what is missing."""
    op.execute(EXPAND)


def downgrade() -> None:
    """Whoever goes back leaves tables and column where they are: nothing reads them."""
