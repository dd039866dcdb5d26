"""Keyset pagination: a page token holds the last key of the previous page."""

# This module does not postpone annotations, because FastAPI cannot resolve names local to
# `page_by`.

import base64
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

import orjson
from fastapi import Query

from server.core.errors import InvalidRequestError
from trainyard.base.ids import ID_PATTERN

Key = TypeVar("Key", str, int)
Row = TypeVar("Row")

MAX_INT = 2**63 - 1
PageSize = Annotated[int, Query(ge=1, le=200, description="Rows of one page.")]


@dataclass(frozen=True)
class PageRequest(Generic[Key]):
    """The requested page of a list: `size` rows after the key `after`."""

    listing: str
    after: Key | None
    size: int

    @property
    def limit(self) -> int:
        """Number of rows to read: one more than the page size, to detect a following page."""
        return self.size + 1

    def cut(
        self, rows: Sequence[Row], key: Callable[[Row], Key]
    ) -> tuple[Sequence[Row], str | None]:
        """Return the page's rows and the next page's token; the token is None on the last page."""
        if len(rows) <= self.size:
            return rows, None
        page = rows[: self.size]
        return page, encode(self.listing, key(page[-1]))


def page_by(
    listing: str, key: type[Key], pattern: str = ID_PATTERN
) -> Callable[..., Awaitable[PageRequest[Key]]]:
    """Return a dependency that reads the parameters `page_size` and `page_token` of a list.

    If the key in a page token is a text, it must match `pattern`.
    """

    token_query = Query(
        description="`next_page_token` of the page before; the first page when absent.",
        json_schema_extra={"format": f"page-token-of-{listing}"},
    )

    async def page_request(
        page_token: Annotated[str | None, token_query] = None, page_size: PageSize = 50
    ) -> PageRequest[Key]:
        if page_token is None:
            return PageRequest(listing, None, page_size)
        after = decode(listing, page_token, key=key, pattern=pattern)
        return PageRequest(listing, after, page_size)

    return page_request


def encode(listing: str, after: str | int) -> str:
    """Return the token of the page after this key."""
    text = orjson.dumps([listing, after])
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def decode(listing: str, token: str, *, key: type[Key], pattern: str = ID_PATTERN) -> Key:
    """Return the key in a page token of this list, or raise `InvalidRequestError`."""
    try:
        text = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        content = orjson.loads(text)
    except ValueError:
        content = None
    match content:
        case [str(name), str() | int() as after] if name == listing and type(after) is key:
            legal = 0 <= after <= MAX_INT if isinstance(after, int) else re.search(pattern, after)
            if legal:
                return after
    raise InvalidRequestError.at(
        "query/page_token", f"unknown page token {token[:80]!r}: take next_page_token of a page"
    )
