"""Refusals as typed errors; the HTTP layer turns each into a problem document.

RefusalError                the request cannot be carried out
├── InvalidRequestError    422  something in it is wrong; `problems` names each place
├── UnauthenticatedError   401  no token, or one that is unknown, expired or revoked
├── ForbiddenError         403  a token that may not do this
├── NotFoundError          404  nothing has this id
├── ConflictError          409  the state forbids it
│   └── NotNamedError      409  the engine has not named this pilot yet
├── TooLargeError          413  the body is over the limit
├── UnsupportedMediaTypeError  415  the body's media type is not accepted
├── TooManyError           429  the address must wait
├── UnreadableError        500  a stored record is of another version
└── UnavailableError       503  the database or the broker does not answer
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from trainyard.base.problems import Problem

MAX_PROBLEMS = 50
"""Problems that one answer lists; `detail` counts the others."""


class RefusalError(Exception):
    """A request that cannot be carried out."""

    status = 400
    title = "The request cannot be carried out"
    type = "/problems/refused"
    headers: Mapping[str, str] = {}
    """Headers of the answer."""

    def __init__(self, detail: str, problems: Iterable[Problem] = ()) -> None:
        super().__init__(detail)
        self.detail = detail
        self.problems = tuple(problems)


class InvalidRequestError(RefusalError):
    """Something in the request is wrong."""

    status = 422
    title = "The request is not valid"
    type = "/problems/invalid-request"

    @classmethod
    def at(cls, pointer: str, detail: str) -> InvalidRequestError:
        """Return the refusal of one field."""
        return cls(f"{pointer}: {detail}", [Problem(pointer=pointer, detail=detail)])

    @classmethod
    def of(cls, problems: Iterable[Problem]) -> InvalidRequestError:
        """Return the refusal of several fields; beyond `MAX_PROBLEMS` they are only counted."""
        found = tuple(problems)
        listed = found[:MAX_PROBLEMS]
        texts = [f"{p.pointer or '/'}: {p.detail}" for p in listed]
        if len(found) > len(listed):
            texts.append(f"and {len(found) - len(listed):,} more problems")
        return cls("; ".join(texts), listed)


class UnauthenticatedError(RefusalError):
    """No token, or one that is unknown, expired or revoked."""

    status = 401
    title = "Authentication is needed"
    type = "/problems/unauthenticated"
    headers: Mapping[str, str] = {"www-authenticate": "Bearer"}


class ForbiddenError(RefusalError):
    """The token may not do this."""

    status = 403
    title = "Not allowed"
    type = "/problems/forbidden"


class NotFoundError(RefusalError):
    """Nothing has this id."""

    status = 404
    title = "Not found"
    type = "/problems/not-found"

    @classmethod
    def of_jobs(cls, job_ids: Sequence[str]) -> NotFoundError:
        """Return the refusal of several jobs that a query names."""
        return cls(
            f"no job has the id {' or '.join(map(repr, job_ids))}",
            [
                Problem(pointer="query/jobs", detail=f"no job has the id {job_id!r}")
                for job_id in job_ids
            ],
        )


class ConflictError(RefusalError):
    """The present state forbids it."""

    status = 409
    title = "The state forbids it"
    type = "/problems/conflict"


class NotNamedError(ConflictError):
    """The engine has not named this pilot yet; the same request may succeed soon."""

    type = "/problems/pilot-not-named"
    headers: Mapping[str, str] = {"retry-after": "5"}


class TooLargeError(RefusalError):
    """The body is over the limit."""

    status = 413
    title = "The body is too large"
    type = "/problems/too-large"


class UnsupportedMediaTypeError(RefusalError):
    """The body's media type is not accepted."""

    status = 415
    title = "The body has the wrong media type"
    type = "/problems/unsupported-media-type"


class TooManyError(RefusalError):
    """The address must wait."""

    status = 429
    title = "Too many requests"
    type = "/problems/too-many"

    def __init__(self, detail: str, *, retry_seconds: int) -> None:
        super().__init__(detail)
        self.headers = {"retry-after": str(retry_seconds)}


class UnreadableError(RefusalError):
    """A stored record that this version of the server cannot read."""

    status = 500
    title = "A stored record cannot be read"
    type = "/problems/unreadable"


class UnavailableError(RefusalError):
    """The database or the broker does not answer."""

    status = 503
    title = "Temporarily unavailable"
    type = "/problems/unavailable"
    headers: Mapping[str, str] = {"retry-after": "2"}
