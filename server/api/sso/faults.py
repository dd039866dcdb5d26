"""Why a login through the issuer fails; the login page has a text for each fault."""

from __future__ import annotations

from enum import StrEnum

MALFORMED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""Errors of the libraries for a reply that they do not expect."""


class LoginFault(StrEnum):
    """Code of a failed login, as in `/login?error=CODE`."""

    STATE = "state"
    """The login is unknown, expired, used up, or began in another browser."""
    DENIED = "denied"
    """The issuer refused the login, or the person cancelled it."""
    ISSUER_DOWN = "issuer_down"
    """The issuer does not respond."""
    INVALID = "invalid"
    """The issuer's reply is not valid."""
    BUSY = "busy"
    """Too many logins are in progress."""
    SIGN_UP = "sign_up"
    """The person has no user here, and gets none by a login."""
    DISABLED = "disabled"
    """The user is disabled."""
    TAKEN = "taken"
    """The identity belongs to another user, or the user has another identity."""
    ENDED = "ended"
    """The session or the invitation with which the login began has ended."""


class LoginError(Exception):
    """A login failed; the text is for the log, and the person sees the text of the fault.

    `page` is the page that shows this text.
    """

    def __init__(self, fault: LoginFault, detail: str) -> None:
        super().__init__(detail)
        self.fault = fault
        self.page = "/login"
        self.detail = detail


class GrantEndedError(Exception):
    """The issuer refuses a refresh token: the person has left, or the issuer ended the grant."""
