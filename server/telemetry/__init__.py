"""Reports of attempts, and the data made from them: metrics, logs, goodput, advice."""
