"""Data left by a month of jobs, and what forgetting them frees."""
