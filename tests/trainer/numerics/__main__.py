"""Measures the rows of the numerics table and writes docs/numerics.md.

python -m tests.trainer.numerics [--missing]
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Iterable
from pathlib import Path

import torch

from tests.trainer.numerics import low_precision
from tests.trainer.numerics.low_precision import Precision
from tests.trainer.numerics.measure import LOSS_TOLERANCE, NORM_TOLERANCE, measure
from tests.trainer.numerics.rows import ROWS, SPEC, Row
from trainyard.spec.layout import Layout

PAGE = Path(__file__).parents[3] / "docs" / "numerics.md"
DAILY_TIME = "which took 5 min 54 s on two cores that others used as well"
MEASURED_ON = f"torch {torch.__version__}, gloo, {platform.machine()}."


def main() -> int:
    """Write the page; 1 when a row is out of its tolerance."""
    parser = argparse.ArgumentParser(prog="python -m tests.trainer.numerics")
    parser.add_argument(
        "--missing",
        action="store_true",
        help="measure only the rows that the page does not have, if torch and machine are its own",
    )
    kept = lines_by_row(PAGE.read_text()) if parser.parse_args().missing else {}
    lines, within = [], True
    for row in ROWS:
        line = kept.get(cells(row))
        if line is None:
            errors = measure(row)
            within &= errors.within
            line = f"| {' | '.join(cells(row))} | {errors.loss:.1e} | {errors.norm:.1e} |"
            sys.stdout.write(f"{line}{'' if errors.within else '  OUT OF TOLERANCE'}\n")
            sys.stdout.flush()
        lines.append(line)
    low_lines = []
    for precision, layout in low_precision.ROWS:
        low_line = kept.get(low_cells(precision, layout))
        if low_line is None:
            distance = low_precision.measure(precision, layout)
            within &= (fits := distance.within(precision))
            start = low_start(precision, layout)
            low_line = f"{start} {distance.loss:.1e} | {distance.weights:.1e} |"
            sys.stdout.write(f"{low_line}{'' if fits else '  OUT OF TOLERANCE'}\n")
            sys.stdout.flush()
        low_lines.append(low_line)
    PAGE.write_text(page(lines, low_lines))
    return 0 if within else 1


def cells(row: Row) -> tuple[str, str, str]:
    """Return what the first columns of a row say: it, without what was measured."""
    return str(row.layout), str(row.layout.world_size), row.options or "-"


def low_cells(precision: Precision, layout: Layout) -> tuple[str, str, str]:
    """Return the first columns of a row of the second table."""
    tolerated = f"{precision.loss:.0e}, {precision.weights:.0e}"
    return precision.name, str(layout), tolerated


def low_start(precision: Precision, layout: Layout) -> str:
    """Return the beginning of a line of the second table."""
    return f"| {' | '.join(low_cells(precision, layout))} |"


def lines_by_row(text: str) -> dict[tuple[str, ...], str]:
    """Return the lines of a page's table by their first columns; none if measured elsewhere."""
    if MEASURED_ON not in text:
        return {}
    table = [line for line in text.splitlines() if line.startswith("| ")]
    return {tuple(cell.strip() for cell in line.split("|")[1:4]): line for line in table}


def page(lines: Iterable[str], low_lines: Iterable[str]) -> str:
    """Return the page with its tables."""
    training = SPEC["training"]
    return "\n".join(
        [
            "# Numerics: every layout against one rank",
            "",
            "Written by `python -m tests.trainer.numerics` (with `--missing` it measures new rows "
            "only); do not edit. `make test` checks the first steps of the quick rows, "
            f"{DAILY_TIME}; `make test-all` checks all of this.",
            "",
            f"Each row trains the same small model (4 layers, 8 heads, dropout 0.1) for "
            f"{training['steps']} steps of {training['global_batch_size']} sequences of "
            f"{training['seq_len']} tokens in float32, through the trainer, and is "
            "compared with one rank. The errors are the largest relative ones over all steps. "
            f"Tolerated are {LOSS_TOLERANCE:g} for the loss and {NORM_TOLERANCE:g} for the norm of "
            "the gradient. Sums in another order alone give some 1e-7.",
            "",
            MEASURED_ON,
            "",
            "| layout | ranks | options | loss | gradient norm |",
            "|---|---|---|---|---|",
            *lines,
            "",
            "## Low precision",
            "",
            "The 1e-7 above is float32's. Rounding to fewer bits turns sums in another order into "
            "another rounding here and there, which the optimizer carries on: after a resume on "
            "another layout the curve is the same to the eye, and the weights are others. Each row "
            "is compared with one rank of the same precision over the same steps: the largest "
            "relative error of the loss, and after the last step the largest distance of a weight, "
            "the norm of the difference divided by the weight's own norm. Both tolerances are "
            "tested (`tests/trainer/numerics/low_precision.py`). The products of float8 and mxfp8 "
            "are emulated on a CPU.",
            "",
            "| precision | layout | tolerated | loss | weights |",
            "|---|---|---|---|---|",
            *low_lines,
            "",
            "On GPUs two runs of one layout differ by such sums too, unless "
            "`training.deterministic` is set: [exact, and how exact]"
            "(trainer.md#exact-and-how-exact).",
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
