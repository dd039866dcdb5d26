"""What happened: the events table and its stream."""
