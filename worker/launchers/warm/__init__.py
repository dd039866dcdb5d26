"""Launches that fork ranks from a process with torch imported, to save each rank the import."""
