"""Which logins of a token are good still is found without those that were ended.

Revision 0023. Only adds. A token may have had any number of logins today.
"""

from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

compatible_from = "0004"

EXPAND = """
CREATE INDEX access_tokens_living ON access_tokens (parent, created_at)
    WHERE parent IS NOT NULL AND revoked_at IS NULL;
"""


def upgrade() -> None:
    """Add what is missing."""
    op.execute(EXPAND)


def downgrade() -> None:
    """Whoever goes back leaves it where it is: nobody reads it."""
