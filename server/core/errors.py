"""Refusals as typed errors; the HTTP layer turns each into a problem document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from trainyard.base.problems import Problem

MAX_PROBLEMS = 50
"""Maximum number of problems that one response lists; the field `detail` has the number of further
problems.
"""


class RefusalError(Exception):
    """Base class: a request that cannot be carried out."""

    status = 400
    title = "The request cannot be carried out"
    type = "/problems/refused"
    headers: Mapping[str, str] = {}
    """HTTP headers of the response."""

    def __init__(self, detail: str, problems: Iterable[Problem] = ()) -> None:
        super().__init__(detail)
        self.detail = detail
        self.problems = tuple(problems)


class InvalidRequestError(RefusalError):
    """A part of the request is invalid; `problems` names each part."""

    status = 422
    title = "The request is not valid"
    type = "/problems/invalid-request"

    @classmethod
    def at(cls, pointer: str, detail: str) -> InvalidRequestError:
        """Return the error for one field of the request."""
        return cls(f"{pointer}: {detail}", [Problem(pointer=pointer, detail=detail)])

    @classmethod
    def of(cls, problems: Iterable[Problem]) -> InvalidRequestError:
        """Return the error for several fields; problems beyond `MAX_PROBLEMS` are only counted."""
        found = tuple(problems)
        listed = found[:MAX_PROBLEMS]
        texts = [f"{p.pointer or '/'}: {p.detail}" for p in listed]
        if len(found) > len(listed):
            texts.append(f"and {len(found) - len(listed):,} more problems")
        return cls("; ".join(texts), listed)


class UnauthenticatedError(RefusalError):
    """The request has no token, or its token is unknown, expired or revoked."""

    status = 401
    title = "Authentication is needed"
    type = "/problems/unauthenticated"
    headers: Mapping[str, str] = {"www-authenticate": "Bearer"}


class ForbiddenError(RefusalError):
    """The token does not permit the request."""

    status = 403
    title = "Not allowed"
    type = "/problems/forbidden"


class NotFoundError(RefusalError):
    """No record has the id in the request."""

    status = 404
    title = "Not found"
    type = "/problems/not-found"

    @classmethod
    def of_jobs(cls, job_ids: Sequence[str]) -> NotFoundError:
        """Return the error for unknown jobs in the query parameters of a request."""
        problems = [
            Problem(pointer="query/jobs", detail=f"no job has the id {each!r}") for each in job_ids
        ]
        return cls(f"no job has the id {' or '.join(map(repr, job_ids))}", problems)


class ConflictError(RefusalError):
    """The current state of the record forbids the request."""

    status = 409
    title = "The state forbids it"
    type = "/problems/conflict"


class NotNamedError(ConflictError):
    """The engine has not named this pilot yet; the same request may succeed soon."""

    type = "/problems/pilot-not-named"
    headers: Mapping[str, str] = {"retry-after": "5"}


class TooLargeError(RefusalError):
    """The request body is over the limit."""

    status = 413
    title = "The body is too large"
    type = "/problems/too-large"


class UnsupportedMediaTypeError(RefusalError):
    """The media type of the request body is not accepted."""

    status = 415
    title = "The body has the wrong media type"
    type = "/problems/unsupported-media-type"


class TooManyError(RefusalError):
    """The client's address must wait before the next request."""

    status = 429
    title = "Too many requests"
    type = "/problems/too-many"

    def __init__(self, detail: str, *, retry_seconds: int) -> None:
        super().__init__(detail)
        self.headers = {"retry-after": str(retry_seconds)}


class UnreadableError(RefusalError):
    """This version of the server cannot read a stored record."""

    status = 500
    title = "A stored record cannot be read"
    type = "/problems/unreadable"


class UnavailableError(RefusalError):
    """The request may succeed later, for example when the database responds or a place is free."""

    status = 503
    title = "Temporarily unavailable"
    type = "/problems/unavailable"
    headers: Mapping[str, str] = {"retry-after": "2"}
