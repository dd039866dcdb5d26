"""The base of the SDK's groups of calls: the transport, and pages as iterators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from trainyard.client.transport import Query, QueryValue, Transport, read, without_none
from trainyard.protocol.rest.common import Page

Item = TypeVar("Item")

PAGE_SIZE = 100


class Calls:
    """A connection to one server."""

    transport: Transport
    """How requests are sent."""

    def _pages(
        self, model: type[Page[Item]], path: str, query: Query | None = None
    ) -> Iterator[Item]:
        parameters: dict[str, QueryValue] = {
            **without_none(query or {}),
            "page_size": PAGE_SIZE,
        }
        while True:
            response = self.transport.send("GET", path, query=parameters)
            page = read(model, response)
            yield from page.items
            if page.next_page_token is None:
                return
            parameters["page_token"] = page.next_page_token
