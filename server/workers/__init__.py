"""The endpoints that workers and supervisors call."""
