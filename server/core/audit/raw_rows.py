"""Rows of the audit log as the database has them, also values that no longer fit their columns.

A check must name such a row. The types of the columns would raise an error for a whole batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson
from sqlalchemy import Boolean, Integer, Select, Table, select, type_coerce
from sqlalchemy.types import NullType, TypeEngine

from server.core.database.column_types import Json, UtcDateTime


def select_raw(table: Table) -> Select[*tuple[Any, ...]]:
    """Return a query of all columns, without the conversions of their types."""
    return select(*(type_coerce(each, NullType()).label(each.name) for each in table.columns))


def parsed(table: Table, row: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the values of a row of `select_raw` by column.

    Raises:
        ValueError: a value has another type than its column.
    """
    return {
        str(each.name): None if row[each.name] is None else _parsed(each.type, row[each.name])
        for each in table.columns
    }


def _parsed(kind: TypeEngine[Any], value: Any) -> Any:
    if isinstance(kind, UtcDateTime):
        at = datetime.fromisoformat(value) if isinstance(value, str) else value
        if isinstance(at, datetime):
            return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    elif isinstance(kind, Json):
        return orjson.loads(value)
    elif isinstance(kind, Boolean):
        if value in {0, 1}:
            return bool(value)
    elif isinstance(value, int if isinstance(kind, Integer) else str):
        return value
    raise ValueError(f"{value!r:.100} is no {kind!r}")
