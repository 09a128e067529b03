"""The cluster can be paused; the audit says what a thing was before and after.

Revision 0002. Only adds, so that a member of the version before goes on beside it.
"""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

EXPAND = """
ALTER TABLE cluster
    ADD COLUMN paused bool NOT NULL DEFAULT false,
    ADD COLUMN switched bigint NOT NULL DEFAULT 0;

CREATE TABLE pauses (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    began timestamptz NOT NULL,
    paused_by text NOT NULL,
    note text NOT NULL DEFAULT '',
    ended timestamptz,
    caught_up bool NOT NULL DEFAULT false
);

ALTER TABLE audit
    ADD COLUMN before text NOT NULL DEFAULT '',
    ADD COLUMN after text NOT NULL DEFAULT '';
"""


def upgrade() -> None:
    """Add what is missing."""
    op.execute(EXPAND)


def downgrade() -> None:
    """Whoever goes back leaves the columns where they are: nothing reads them."""
