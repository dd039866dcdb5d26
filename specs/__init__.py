"""What the parts of Trainyard agree on: pydantic models and pure functions, no I/O, no torch."""
