"""What a trigger says of overlap, and whether a run that is being cancelled is to be killed.

Revision 0006. Only adds, so that a member of the version before goes on beside it. It goes by the
job's policy where a trigger named another, terminates where it should kill, and leaves alone the
jobs whose policy it doesn't know, but for their results: it doesn't try again what failed.
"""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

compatible_from = "0004"

EXPAND = """
ALTER TABLE runs
    ADD COLUMN killing bool NOT NULL DEFAULT false,
    ADD COLUMN overlap text;  -- NULL: as its job says
"""


def upgrade() -> None:
    """Add what is missing."""
    op.execute(EXPAND)


def downgrade() -> None:
    """Whoever goes back leaves the columns where they are: nothing reads them."""
