"""The worker of one node and the supervisor of an attempt's share; neither uses a database."""
