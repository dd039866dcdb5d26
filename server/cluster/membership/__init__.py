"""Members of projects: their roles, and the service accounts."""
