"""Responses with JSON text that comes from pydantic or the database and is not validated again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson
from pydantic import BaseModel
from starlette.responses import Response

JSON = "application/json"


def reply(
    model: BaseModel, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Respond with a model; its configuration determines how NaN and infinity are written."""
    return Response(model.model_dump_json(), status, dict(headers or {}), JSON)


def reply_page(items: Sequence[object], next_page_token: str | None) -> Response:
    """Respond with a page of rows, serialized by orjson."""
    return reply_rows({"items": items, "next_page_token": next_page_token})


def reply_rows(content: Mapping[str, object]) -> Response:
    """Respond with a model that has many rows; orjson writes its fields without validation."""
    return Response(orjson.dumps(content, option=orjson.OPT_UTC_Z), media_type=JSON)
