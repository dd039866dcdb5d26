"""JSON request bodies: read completely, then validated by their pydantic model."""

# This module does not postpone annotations, because FastAPI cannot resolve strings on a callable
# instance.

from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Depends, Request
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.concurrency import run_in_threadpool

from server.core.errors import InvalidRequestError, UnsupportedMediaTypeError
from trainyard.base.json_text import json_problem
from trainyard.base.problems import Problem, pointer_to, problems_of

Model = TypeVar("Model", bound=BaseModel)

NUL = b"\\u0000"
"""Bytes of an escaped NUL in JSON; PostgreSQL's text cannot hold a NUL. An escaped backslash before
`u0000` contains the same bytes, so only the parsed value shows whether it has a NUL.
"""
SMALL_BYTES = 4 * 1024
"""Maximum size of a body that is validated in the event loop, in bytes. The validation of such a
body takes less than 4 ms. If the body is invalid, a thread makes the list of problems, because
1,000 problems take 30 ms.
"""


async def _read(request: Request) -> bytes:
    content = await request.body()
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content and media_type != "application/json":
        raise UnsupportedMediaTypeError(
            f"the body must be application/json, not {media_type or 'untyped'}"
        )
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if content and encoding != "identity":
        raise UnsupportedMediaTypeError(
            f"content-encoding={encoding[:40]!r} is not read; legal: identity, or no such header"
        )
    return content


class JsonBody(Generic[Model]):
    """A dependency that parses the body as `model`; an empty body gives the default, if any.

    The model validates the JSON text itself, so a large body becomes Python objects only once.
    """

    def __init__(self, model: type[Model], *, default: Model | None = None) -> None:
        self.model = model
        self.default = default

    async def __call__(self, content: Annotated[bytes, Depends(_read)]) -> Model:
        """Return the body as the model, or raise `InvalidRequestError`."""
        if not content and self.default is not None:
            return self.default
        small = len(content) <= SMALL_BYTES
        if small and NUL not in content and json_problem(content) is None:
            with suppress(ValidationError):
                return self.model.model_validate_json(content)
        return await run_in_threadpool(parse_json, self.model, content)


def parse_json(model: type[Model], content: bytes) -> Model:
    """Parse a JSON text as a model, or raise `InvalidRequestError` with every problem."""
    problem = json_problem(content)
    if problem is not None:
        raise InvalidRequestError.of([problem])
    if NUL in content:
        problems = [
            Problem(pointer=pointer_to(location), detail="holds a NUL character")
            for location in _find_nul(_document(content), ())
        ]
        if problems:
            raise InvalidRequestError.of(problems)
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        raise InvalidRequestError.of(problems_of(error, _document(content))) from None


def _document(content: bytes) -> Any:
    try:
        return from_json(content, allow_inf_nan=True)
    except ValueError:
        return None


def _find_nul(value: Any, location: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    # The parser limits the depth of a value, and so the depth of the recursion.
    if isinstance(value, str):
        if "\0" in value:
            yield location
    elif isinstance(value, dict):
        for key, item in value.items():
            if "\0" in key:
                yield location
            yield from _find_nul(item, (*location, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _find_nul(item, (*location, index))
