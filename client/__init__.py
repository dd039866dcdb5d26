"""The Python SDK and the `trainyard` command."""
