"""Artifacts of jobs: uploads by supervisors, and views for people."""
