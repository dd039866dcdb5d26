"""The audit log: views of its rows."""
