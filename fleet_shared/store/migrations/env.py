"""Alembic's entry: runs the migrations on the connection that `fleet_shared.store.schema` opened."""

from alembic import context

from fleet_shared.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
    compare_type=True,
    transaction_per_migration=False,
)
with context.begin_transaction():
    context.run_migrations()
