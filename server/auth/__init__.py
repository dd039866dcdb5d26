"""Who may do what: tokens, browser sessions, and the dependencies that ask for them."""
