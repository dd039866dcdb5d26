"""Column types: UTC times, and records kept as JSON text."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, Self, TypeVar

import orjson
from pydantic import ValidationError
from sqlalchemy import (
    JSON,
    ColumnElement,
    Connection,
    DateTime,
    Dialect,
    Float,
    Text,
    cast,
    extract,
    func,
)
from sqlalchemy.types import TypeDecorator

from server.core.errors import UnreadableError
from trainyard.base.problems import spec_error
from trainyard.protocol.record_parser import adapter, parse_record

Model = TypeVar("Model")


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC time; SQLite has no zones and stores it naive."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert a time to UTC; a naive time is an error, as its zone is unknown."""
        if value is None:
            return None
        assert value.tzinfo is not None, "naive time"
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return the time with its zone."""
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


@dataclass
class StoredRecord(Generic[Model]):
    """A record as JSON text, parsed on first use.

    So an unreadable record hides neither the other columns of its row nor the other rows.
    """

    model: type[Model]
    text: str
    _record: Model | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, record: Model) -> Self:
        """Return a record to store."""
        model = type(record)
        return cls(model, adapter(model).dump_json(record).decode(), record)

    def read(self, of: str) -> Model:
        """Return the record; `of` names it in the error, as in `spec of job 01...`.

        Raises:
            UnreadableError: another version wrote it.
        """
        if self._record is None:
            try:
                self._record = parse_record(self.model, self.text)
            except ValidationError as error:  # its text shows values, such as credentials in URLs
                problem = spec_error(error, self.text)
                raise UnreadableError(f"the stored {of} cannot be read: {problem}") from None
        return self._record

    def read_or_none(self) -> Model | None:
        """Return the record, or None if another version wrote it."""
        try:
            return self.read("record")
        except UnreadableError:
            return None


class Record(TypeDecorator[Model]):
    """A value that pydantic validates, stored as JSON text; tuples and enums keep their types.

    NaN and infinity are stored where the class allows them.
    """

    impl = Text
    cache_ok = True

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model: type[Model] = model
        """The class, or a union of classes."""

    def process_bind_param(self, value: Model | None, dialect: Dialect) -> str | None:
        """Write the model."""
        del dialect
        return None if value is None else adapter(self.model).dump_json(value).decode()

    def process_result_value(self, value: str | None, dialect: Dialect) -> Model | None:
        """Read the model.

        Raises:
            UnreadableError: another version wrote it.
        """
        del dialect
        return None if value is None else StoredRecord(self.model, value).read(self.model.__name__)


class Lazy(Record[Model]):
    """A record that another version may have written; queries return it as `StoredRecord`."""

    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """Write the model; a `StoredRecord` keeps its text."""
        if isinstance(value, StoredRecord):
            return value.text
        return super().process_bind_param(value, dialect)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        """Return the text, unparsed."""
        del dialect
        return None if value is None else StoredRecord(self.model, value)


def seconds_between(
    connection: Connection, start: ColumnElement[Any], end: ColumnElement[Any]
) -> ColumnElement[float]:
    """Return the seconds between two times in a query, NULL if one is NULL."""
    if connection.dialect.name == "sqlite":
        days = func.julianday(end, type_=Float) - func.julianday(start, type_=Float)
        return days * 86_400
    return cast(extract("epoch", end - start), Float)


def text_of(connection: Connection, record: ColumnElement[Any], *path: str) -> ColumnElement[Any]:
    """Return the text of a field of a stored record in a query, NULL without one.

    `path` has the names of the enclosing records, then that of the field. The record is not parsed,
    so this also reads records of other versions.
    """
    if connection.dialect.name == "sqlite":
        return func.json_extract(record, f"$.{'.'.join(path)}", type_=Text)
    found: ColumnElement[Any] = cast(record, JSON)[path].as_string()
    return found
