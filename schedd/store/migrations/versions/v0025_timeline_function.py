"""The timeline and the system identifier, also where a managed service doesn't give them.

Revision 0025. Only adds. Aurora and others refuse `pg_current_wal_lsn()` or `pg_control_system()`
to every role: then both functions return NULL instead of an error.
"""

from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

compatible_from = "0004"

EXPAND = """
CREATE FUNCTION schedd_timeline() RETURNS int LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF pg_is_in_recovery() THEN
        RETURN (SELECT timeline_id FROM pg_control_checkpoint());
    END IF;
    RETURN ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int;
EXCEPTION WHEN object_not_in_prerequisite_state OR insufficient_privilege
    OR undefined_function OR feature_not_supported THEN
    RETURN NULL;
END $$;
CREATE FUNCTION schedd_system_identifier() RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT system_identifier FROM pg_control_system());
EXCEPTION WHEN object_not_in_prerequisite_state OR insufficient_privilege
    OR undefined_function OR feature_not_supported THEN
    RETURN NULL;
END $$;
"""


def upgrade() -> None:
    """Add what is missing."""
    op.execute(EXPAND)


def downgrade() -> None:
    """Whoever goes back leaves it where it is: nobody calls it."""
