"""Users: bodies and views of their logins, invitations and sessions."""
