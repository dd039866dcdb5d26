"""Dependencies of endpoints: the context of the server that answers."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from server.context import Context


async def context_of(request: Request) -> Context:
    """Return the context that `create_app` was given."""
    context = request.app.state.context
    assert isinstance(context, Context)
    return context


ServerContext = Annotated[Context, Depends(context_of)]
