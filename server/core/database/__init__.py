"""The database: engine, tables, typed rows and migrations."""
