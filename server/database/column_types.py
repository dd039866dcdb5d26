"""Column types: UTC times, and records kept as JSON text."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, TypeVar

import orjson
from pydantic import TypeAdapter
from sqlalchemy import DateTime, Dialect, Text
from sqlalchemy.types import TypeDecorator

from trainyard.protocol.record_parser import adapter, parse_record

Model = TypeVar("Model")


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC time; SQLite, which knows no zones, keeps it naive."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuse a naive time, whose zone is unknown."""
        if value is None:
            return None
        assert value.tzinfo is not None, "naive time"
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return the time as an aware one."""
        del dialect
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Json(TypeDecorator[Any]):
    """Plain JSON values as text, the same on both databases."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """Write JSON text."""
        del dialect
        return None if value is None else orjson.dumps(value).decode()

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        """Read JSON text."""
        del dialect
        return None if value is None else orjson.loads(value)


class Typed(TypeDecorator[Any]):
    """A value of a type that pydantic validates, as JSON text: tuples and enums stay what they are.

    The type is given as its adapter: SQLAlchemy's cache needs an argument that can be hashed.
    """

    impl = Text
    cache_ok = True

    def __init__(self, adapter: TypeAdapter[Any]) -> None:
        super().__init__()
        self.adapter = adapter

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """Write JSON text."""
        del dialect
        return None if value is None else self.adapter.dump_json(value).decode()

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        """Read and validate JSON text."""
        del dialect
        return None if value is None else self.adapter.validate_json(value)


class Record(TypeDecorator[Model]):
    """A model or a record as JSON text; NaN and infinity are kept where its class allows them."""

    impl = Text
    cache_ok = True

    def __init__(self, model: type[Model]) -> None:
        super().__init__()
        self.model = model

    def process_bind_param(self, value: Model | None, dialect: Dialect) -> str | None:
        """Write the model."""
        del dialect
        return None if value is None else adapter(self.model).dump_json(value).decode()

    def process_result_value(self, value: str | None, dialect: Dialect) -> Model | None:
        """Read the model."""
        del dialect
        return None if value is None else parse_record(self.model, value)
