"""The people who act in tests."""

from server.core.subject import Actor

ADA, BOB, EVE, TESTER = (Actor(name, f"token of {name}") for name in ("ada", "bob", "eve", "test"))
ADMIN = Actor("admin", "token of the admin", is_admin=True)
