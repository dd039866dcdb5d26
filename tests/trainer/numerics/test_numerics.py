"""Each layout computes what one rank computes; the table is written by the module's command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.numerics.measure import measure
from tests.trainer.numerics.rows import ROWS, Row

DAILY_STEPS = 4
"""Two of them with weights that the optimizer has moved at the full learning rate."""
PAGE = Path(__file__).parents[3] / "docs" / "numerics.md"


@pytest.mark.parametrize("row", [row for row in ROWS if not row.slow], ids=str)
def test_a_layout_starts_as_one_rank_does(row: Row) -> None:
    errors = measure(row, steps=DAILY_STEPS)
    assert errors.within, errors


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_layout_computes_what_one_rank_computes(row: Row) -> None:
    errors = measure(row)
    assert errors.within, errors


def test_the_table_has_every_row() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")][1:]
    assert len(ROWS) >= 30
    assert [line.split("|")[1].strip() for line in lines] == [str(row.layout) for row in ROWS]
    assert [line.split("|")[3].strip() for line in lines] == [row.options or "-" for row in ROWS]
