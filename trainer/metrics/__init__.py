"""What a run records: metrics, events, profiles, and what is measured for them."""
