"""What attempts report, and what is computed from it: metrics, logs, goodput, advice."""
