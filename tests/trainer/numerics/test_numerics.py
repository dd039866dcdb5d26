"""Each layout computes what one rank computes; the table is written by the module's command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.numerics import low_precision
from tests.trainer.numerics.__main__ import cells, lines_by_row, low_cells, low_start, page
from tests.trainer.numerics.low_precision import Precision
from tests.trainer.numerics.measure import errors_of, measure, train
from tests.trainer.numerics.rows import DOCUMENTS, ROWS, Row
from trainyard.spec.layout import Layout

DAILY_STEPS = 4
"""Two of them with weights after steps at the full learning rate."""
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


LOW = low_precision.ROWS


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "layout"), LOW, ids=str)
def test_a_layout_in_low_precision_stays_within_its_tolerance(
    precision: Precision, layout: Layout
) -> None:
    distance = low_precision.measure(precision, layout)
    assert distance.within(precision), distance


def test_a_layout_that_forgets_the_masks_is_not_within() -> None:
    masked = train(DOCUMENTS, Layout(), steps=DAILY_STEPS)
    joined = {"data": {**DOCUMENTS["data"], "document_masks": False}}
    assert not errors_of(train(joined, Layout(), steps=DAILY_STEPS), masked).within


def test_the_table_has_every_row() -> None:
    first, bound = PAGE.read_text().split("## The bound")
    _, second = bound.split("## Low precision")
    assert len(ROWS) >= 30
    assert _cells(first) == [cells(row) for row in ROWS]
    assert _cells(second) == [low_cells(precision, layout) for precision, layout in LOW]


def _cells(text: str) -> list[tuple[str, ...]]:
    lines = [line for line in text.splitlines() if line.startswith("| ")][1:]
    return [tuple(cell.strip() for cell in line.split("|")[1:4]) for line in lines]


def test_lines_measured_here_are_found_again_and_others_are_not() -> None:
    line = f"| {' | '.join(cells(ROWS[0]))} | 1.2e-07 | 5.8e-07 |"
    low = f"{low_start(*LOW[0])} 1.2e-07 | 5.8e-07 |"
    found = lines_by_row(text := page([line], [low]))
    assert (found[cells(ROWS[0])], found[low_cells(*LOW[0])]) == (line, low)
    assert lines_by_row(text.replace("torch ", "torch 1.")) == {}
