"""What slows a job, found in its own records (docs/advice.md)."""
