"""Each layout computes what one rank computes; the table is written by the module's command."""

from __future__ import annotations

from pathlib import Path

import pytest

from specs.layout import Layout
from tests.trainer.numerics.measure import errors_of, measure, train
from tests.trainer.numerics.rows import DOCUMENTS, ROWS, Row

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


def test_a_layout_that_forgets_the_masks_is_not_within() -> None:
    masked = train(DOCUMENTS, Layout(), steps=DAILY_STEPS)
    joined = {"data": {**DOCUMENTS["data"], "document_masks": False}}
    assert not errors_of(train(joined, Layout(), steps=DAILY_STEPS), masked).within


def test_the_table_has_every_row() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")][1:]
    assert len(ROWS) >= 30
    assert [line.split("|")[1].strip() for line in lines] == [str(row.layout) for row in ROWS]
    assert [line.split("|")[3].strip() for line in lines] == [row.options or "-" for row in ROWS]
