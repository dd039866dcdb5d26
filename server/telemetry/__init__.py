"""What flows back from training: reports in, charts, logs and the catalog out."""
