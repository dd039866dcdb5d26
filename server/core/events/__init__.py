"""What happened: the events table and its tail."""
