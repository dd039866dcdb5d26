"""What the real server carries: reports, submissions and heartbeats, from one other process."""
