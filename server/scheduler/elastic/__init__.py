"""Elastic jobs, which start on free slots and change their size by order of the scheduler."""
