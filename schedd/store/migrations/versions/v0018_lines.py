"""A timer bears its job's line: in which line runs wait is known without their definitions.

Revision 0018. Only adds columns, at once whatever the table holds. What older code writes has none,
or one of another generation, and counts for nothing: the definition is read then.
"""

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

compatible_from = "0004"

EXPAND = """
ALTER TABLE timers ADD COLUMN line bigint, ADD COLUMN line_generation integer;
"""


def upgrade() -> None:
    """Add what is missing."""
    op.execute(EXPAND)


def downgrade() -> None:
    """Whoever goes back leaves it where it is: nobody has to fill it."""
