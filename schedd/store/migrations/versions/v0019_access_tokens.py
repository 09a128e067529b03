"""Access tokens: whose they are, what they are good for, and until when.

Revision 0019. Only adds. Of what is sent nothing is stored but a digest. A login of the dashboard
has the token that it was made by as its parent, and ends with it.
"""

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

compatible_from = "0004"

EXPAND = """
CREATE TABLE access_tokens (
    token_id    uuid PRIMARY KEY,
    digest      bytea NOT NULL,
    name        text NOT NULL,
    role        text NOT NULL,
    namespaces  text[] NOT NULL,
    created_at  timestamptz NOT NULL,
    created_by  text NOT NULL,
    expires_at  timestamptz NOT NULL,
    revoked_at  timestamptz,
    revoked_by  text NOT NULL DEFAULT '',
    parent      uuid REFERENCES access_tokens ON DELETE CASCADE
);
CREATE INDEX access_tokens_created ON access_tokens (created_at, token_id) WHERE parent IS NULL;
CREATE INDEX access_tokens_expires ON access_tokens (expires_at);
CREATE INDEX access_tokens_parent ON access_tokens (parent) WHERE parent IS NOT NULL;
"""


def upgrade() -> None:
    """Add what is missing."""
    op.execute(EXPAND)


def downgrade() -> None:
    """Whoever goes back leaves it where it is: nobody reads it."""
