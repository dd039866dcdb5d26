"""Artifacts of jobs: uploads by supervisors, and views of people."""
