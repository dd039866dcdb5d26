"""What a caller sees: the scope of a request, and names of jobs inside texts."""
