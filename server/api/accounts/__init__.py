"""Users: logins, passwords, invitations, and the endpoints of browser sessions."""
