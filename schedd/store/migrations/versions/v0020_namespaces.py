"""The namespaces whose runs an incarnation of a worker may be given; NULL: all.

Revision 0020. Only adds. An older member writes none: of what it registers all namespaces are held
to be served until the worker comes to a newer one.
"""

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

compatible_from = "0004"


def upgrade() -> None:
    """Add what is missing."""
    op.execute("ALTER TABLE incarnations ADD COLUMN namespaces text[]")


def downgrade() -> None:
    """Whoever goes back leaves it where it is: nobody reads it."""
