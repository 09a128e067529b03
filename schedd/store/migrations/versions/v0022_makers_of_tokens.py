"""Which token or login made a token, that it may end with it; NULL: none, or one of before this.

Revision 0022. Only adds. A login has it as its parent, as before. An older member writes none, and
marks nothing but what it revokes.
"""

from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

compatible_from = "0004"

EXPAND = """
ALTER TABLE access_tokens ADD COLUMN maker uuid REFERENCES access_tokens ON DELETE CASCADE;
CREATE INDEX access_tokens_maker ON access_tokens (maker) WHERE maker IS NOT NULL;
"""


def upgrade() -> None:
    """Add what is missing."""
    op.execute(EXPAND)


def downgrade() -> None:
    """Whoever goes back leaves it where it is: nobody reads it."""
