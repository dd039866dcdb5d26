"""Models and what makes them reproducible: initial weights and noise keyed by name and place."""
