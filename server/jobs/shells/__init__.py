"""Commands in running attempts: requested by people, started by supervisors."""
