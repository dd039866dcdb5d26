"""The people who act in tests."""

from server.subject import Actor

ADA, BOB, EVE = Actor("ada"), Actor("bob"), Actor("eve")
TESTER = Actor("test")
