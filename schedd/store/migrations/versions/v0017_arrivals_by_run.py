"""What has arrived of a run is found by it: whoever deletes runs asks for each.

Revision 0017. Only adds an index. The table has what isn't judged yet, so it is short, and what
ends runs waits for it no longer than that takes.
"""

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

compatible_from = "0004"

EXPAND = """
CREATE INDEX chain_arrivals_run ON chain_arrivals (run_id);
"""


def upgrade() -> None:
    """Add what is missing."""
    op.execute(EXPAND)


def downgrade() -> None:
    """Whoever goes back leaves it where it is: it is kept up to date by the database."""
