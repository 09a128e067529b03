"""How Alembic runs the steps: on the connection that `store.schema.migrate` hands over."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], target_metadata=None)
context.run_migrations()
