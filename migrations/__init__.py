"""The database schema and its history (Alembic)."""
