"""Tables as artifacts: JSON with `columns` and `data`, of limited size."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from trainyard.run.fact_types.fact_section import fact_value

MAX_ROWS, MAX_COLUMNS = 10_000, 256
MAX_TABLE_BYTES = 4 * 1024 * 1024
"""Maximum size of a table's rows as JSON text, in bytes, so that a page can show the table."""


def table_content(columns: Sequence[object], rows: Iterable[Sequence[object]]) -> tuple[bytes, int]:
    """Return the content of a table, and the number of rows that exceed a limit.

    Raises:
        ValueError: there are no columns or too many, or a row has the wrong number of cells.
    """
    names = [str(_cell(name)) for name in columns]
    if not 1 <= len(names) <= MAX_COLUMNS:
        raise ValueError(f"{len(names)} columns; legal: 1 to {MAX_COLUMNS}")
    parts: list[str] = []
    size = left_out = 0
    for row in rows:
        if len(row) != len(names):
            raise ValueError(f"a row has {len(row)} cells; legal: {len(names)}, one a column")
        if left_out or len(parts) >= MAX_ROWS:
            left_out += 1
            continue
        part = json.dumps([*map(_cell, islice(row, MAX_COLUMNS))], ensure_ascii=False)
        size += len(part.encode()) + 1
        if size > MAX_TABLE_BYTES:
            left_out += 1
        else:
            parts.append(part)
    head = json.dumps(names, ensure_ascii=False)
    text = f'{{"columns":{head},"left_out":{left_out},"data":[{",".join(parts)}]}}'
    return text.encode(), left_out


def _cell(value: Any) -> Any:
    """Return a cell as a JSON value, else as text, else as the name of its type."""
    if value is None:
        return None
    try:
        return fact_value(value)
    except Exception:  # noqa: BLE001 - from an object of any library
        return f"<{type(value).__name__}>"
