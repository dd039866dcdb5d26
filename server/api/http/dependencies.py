"""Dependencies of endpoints: the context of the server that answers."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from server.core.context import Context


def context_of(request: Request) -> Context:
    """Return the context that `create_app` was given."""
    context = request.app.state.context
    assert isinstance(context, Context)
    return context


async def _context(request: Request) -> Context:  # in the event loop: FastAPI gives a thread to
    return context_of(request)  # each function that is not `async`


ServerContext = Annotated[Context, Depends(_context)]
