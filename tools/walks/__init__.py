"""Walks through the code: the files and names that one thing passes from end to end."""
