"""Commands in running attempts: messages of supervisors, and requests and views for people."""
