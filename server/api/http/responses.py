"""Answers as JSON text that pydantic or the database wrote, without another validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson
from pydantic import BaseModel
from starlette.responses import Response

JSON = "application/json"


def reply(
    model: BaseModel, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Answer with a model; NaN and infinity leave as it is configured."""
    return Response(model.model_dump_json(), status, dict(headers or {}), JSON)


def reply_page(items: Sequence[object], next_page_token: str | None) -> Response:
    """Answer with a page of rows that orjson can write."""
    return reply_rows({"items": items, "next_page_token": next_page_token})


def reply_rows(content: Mapping[str, object]) -> Response:
    """Answer with the fields of a model whose many rows orjson can write; none is validated."""
    return Response(orjson.dumps(content, option=orjson.OPT_UTC_Z), media_type=JSON)
