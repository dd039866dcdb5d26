"""Each layout computes what one rank computes; the table is written by the module's command."""

from __future__ import annotations

from pathlib import Path

import pytest

from specs.layout import Layout
from tests.trainer.numerics.__main__ import cells, lines_by_row, page
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
    assert [tuple(c.strip() for c in line.split("|")[1:4]) for line in lines] == [
        cells(row) for row in ROWS
    ]


def test_lines_measured_here_are_found_again_and_others_are_not() -> None:
    line = f"| {' | '.join(cells(ROWS[0]))} | 1.2e-07 | 5.8e-07 |"
    assert lines_by_row(page([line]))[cells(ROWS[0])] == line
    assert lines_by_row(page([line]).replace("torch ", "torch 1.")) == {}
