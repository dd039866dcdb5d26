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
from trainyard.training.rounding import AT_ONE, MAX_DIFFERENCE, STEPS

PAGE = Path(__file__).parents[3] / "docs" / "numerics.md"
DAILY_TIME = "in 5 min 54 s on two shared cores"
MEASURED_ON = f"torch {torch.__version__}, gloo, {platform.machine()}."


def main() -> int:
    """Write the page; return 1 if a row exceeds its tolerance."""
    parser = argparse.ArgumentParser(prog="python -m tests.trainer.numerics")
    parser.add_argument(
        "--missing",
        action="store_true",
        help="measure only rows that the page lacks, if torch and machine are those of the page",
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
    """Return the first columns of a row, which identify it."""
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


def bound_lines() -> list[str]:
    """Return the section of the bound."""
    return [
        "## The bound",
        "",
        "After a change of layout, two losses of the same step differ by at most",
        "",
        f"`at_one x max(1, gradient norm) x max(1, steps / {STEPS})`",
        "",
        "relative to the loss. The gradient norm is the largest one before clipping since the "
        "change; the steps are those since the change. The bound never exceeds "
        f"{MAX_DIFFERENCE:g}. It grows with the gradient norm g, because a difference w of the "
        "weights changes the loss by g x w. The function is "
        "`trainyard.training.rounding.loss_bound`, and the badge of a resume applies it. In "
        "float64 the same changes of layout stay within 1e-12, so only rounding differs "
        "(`tests/trainer/numerics/test_rounding.py`).",
        "",
        "| coarsest precision | at_one |",
        "|---|---|",
        *(f"| {name} | {value:g} |" for name, value in AT_ONE.items()),
        "",
        "The bound holds only for stable training. In unstable training a small difference of the "
        "weights grows in every precision. Example: after 60 steps without clipping, the model of "
        "this page has learned its 700 windows by heart. The losses of TP 2 and one rank then "
        "differ in float32 by 6e-8 at step 10, 1.5e-6 at 30, 3.7e-5 at 60, 2.6e-4 at 100 and "
        "1.7e-2 at 150. At 17 times the learning rate the model does not learn, and the losses "
        "differ in float64 by 3e-16 at step 10 and by 6e-2 at 40.",
        "",
    ]


def page(lines: Iterable[str], low_lines: Iterable[str]) -> str:
    """Return the page with its tables."""
    training = SPEC["training"]
    return "\n".join(
        [
            "# Numerics: every layout against one rank",
            "",
            "Generated by `python -m tests.trainer.numerics`; do not edit. `--missing` measures "
            "new rows only. `make test-ci` checks the first steps of the quick rows, "
            f"{DAILY_TIME}; `make test-all` checks all rows.",
            "",
            f"Each row trains the same small model (4 layers, 8 heads, dropout 0.1) for "
            f"{training['steps']} steps of {training['global_batch_size']} sequences of "
            f"{training['seq_len']} tokens in float32 with the trainer, and compares it with one "
            "rank. The errors are the largest relative ones over all steps. The tolerance is "
            f"{LOSS_TOLERANCE:g} for the loss and {NORM_TOLERANCE:g} for the norm of the gradient. "
            "Another order of summation alone causes errors of about 1e-7.",
            "",
            MEASURED_ON,
            "",
            "| layout | ranks | options | loss | gradient norm |",
            "|---|---|---|---|---|",
            *lines,
            "",
            *bound_lines(),
            "## Low precision",
            "",
            "The 1e-7 above is the rounding error of float32. With fewer bits another order of "
            "summation sometimes rounds to a neighbouring number, and the optimizer accumulates "
            "such differences: after a resume on another layout the loss curve is visually the "
            "same, but the weights differ. Each row compares the run on its layout with a run on "
            "one rank, in the same precision and over the same steps. Loss: the largest relative "
            "error. Weights: after the last step, the largest norm of the difference of a weight, "
            "divided by the norm of the weight. Tests check both tolerances "
            "(`tests/trainer/numerics/low_precision.py`). On a CPU the products of float8 and "
            "mxfp8 are emulated.",
            "",
            "| precision | layout | tolerated | loss | weights |",
            "|---|---|---|---|---|",
            *low_lines,
            "",
            "On GPUs two runs of one layout also differ in the order of sums, unless "
            "`training.deterministic` is set: [exact, and how exact]"
            "(trainer.md#exact-and-how-exact).",
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
