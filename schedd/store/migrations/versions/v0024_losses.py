"""Losses of members and workers, and changes of leader, as rows.

Revision 0024. Only adds: a member of the version before goes on beside it. Losses that it records
aren't marked `unplanned`, so they aren't listed.
"""

from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

compatible_from = "0004"

EXPAND = """
ALTER TABLE tenures
    ADD COLUMN unplanned bool NOT NULL DEFAULT false,  -- it ended without a goodbye
    ADD COLUMN grpc text NOT NULL DEFAULT '',
    ADD COLUMN http text NOT NULL DEFAULT '',
    ADD COLUMN version text NOT NULL DEFAULT '',
    ADD COLUMN prefix uuid;                            -- id of the etcd prefix; NULL: older version
CREATE INDEX tenures_unplanned ON tenures (fenced_at) WHERE unplanned;
CREATE INDEX tenures_of_member ON tenures (member, opened_at);

ALTER TABLE incarnations
    ADD COLUMN unplanned bool NOT NULL DEFAULT false,
    ADD COLUMN seen_at timestamptz;                    -- NULL: known from an older version alone
CREATE INDEX incarnations_unplanned ON incarnations (lost_at) WHERE unplanned;
CREATE INDEX incarnations_of_worker ON incarnations (worker, started_at);

CREATE TABLE cluster_events (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    transaction bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    kind text NOT NULL,
    object text NOT NULL,
    actor text NOT NULL,
    reason text NOT NULL,
    detail text NOT NULL
);
CREATE INDEX cluster_events_transaction ON cluster_events (transaction);
CREATE INDEX cluster_events_at ON cluster_events (at);
"""


def upgrade() -> None:
    """Add what is missing."""
    op.execute(EXPAND)


def downgrade() -> None:
    """Keep the columns and the table: the version before doesn't read them."""
