"""Reports of attempts and their evaluation: metrics, logs, goodput, advice."""
