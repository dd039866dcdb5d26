"""FastAPI dependency that gives endpoints the server's context."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from server.core.context import Context


def context_of(request: Request) -> Context:
    """Return the context that was passed to `create_app`."""
    context = request.app.state.context
    assert isinstance(context, Context)
    return context


async def _context(request: Request) -> Context:  # FastAPI would run a plain function in a thread
    return context_of(request)


ServerContext = Annotated[Context, Depends(_context)]
