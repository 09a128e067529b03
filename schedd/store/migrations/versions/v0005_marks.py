"""The leader's marks, and pauses that a database which went back begins with.

Revision 0005. Only adds, so that a member of the version before goes on beside it: as long as one
leads, no marks are made.
"""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

compatible_from = "0004"

EXPAND = """
ALTER TABLE cluster ADD COLUMN marked_at timestamptz;

ALTER TABLE pauses
    -- Of a pause by which a database that went back is held: until when it may have gone on.
    ADD COLUMN lost_until timestamptz,
    -- At its end: what fell due from here on is caught up; NULL: all or nothing, as caught_up says.
    ADD COLUMN caught_up_since timestamptz;
"""


def upgrade() -> None:
    """Add what is missing."""
    op.execute(EXPAND)


def downgrade() -> None:
    """Whoever goes back leaves the columns where they are: nothing reads them."""
