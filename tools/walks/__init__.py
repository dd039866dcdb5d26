"""Walks through the code, counted: which files and names one thing passes from end to end."""
