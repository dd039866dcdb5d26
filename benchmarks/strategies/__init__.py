"""What `python -m benchmarks.strategies` runs."""
