"""Walks through the code: the files and names through which one piece of data passes."""
