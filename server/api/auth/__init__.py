"""Authentication: tokens, browser sessions, and the dependencies that require them."""
