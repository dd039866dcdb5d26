"""What one process at a time decides, and nothing asks of it over HTTP: rounds, sizes, supply,
retention."""
