"""Dependency of endpoints on the server's context."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from server.core.context import Context


def context_of(request: Request) -> Context:
    """Return the context that `create_app` was given."""
    context = request.app.state.context
    assert isinstance(context, Context)
    return context


async def _context(request: Request) -> Context:  # `async`, because FastAPI runs other functions
    return context_of(request)  # in a thread


ServerContext = Annotated[Context, Depends(_context)]
