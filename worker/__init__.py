"""The Celery app of one node, and the supervisor of one share of an attempt; without a database."""
