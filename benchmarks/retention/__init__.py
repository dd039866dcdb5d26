"""What a month of jobs leaves behind, and what forgetting them frees."""
