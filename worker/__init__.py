"""One node's Celery app, and the supervisor that owns one torchrun; no database."""
