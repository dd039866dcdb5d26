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

from tests.trainer.numerics.measure import LOSS_TOLERANCE, NORM_TOLERANCE, measure
from tests.trainer.numerics.rows import ROWS, SPEC, Row

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
    PAGE.write_text(page(lines))
    return 0 if within else 1


def cells(row: Row) -> tuple[str, str, str]:
    """Return what the first columns of a row say: it, without what was measured."""
    return str(row.layout), str(row.layout.world_size), row.options or "-"


def lines_by_row(text: str) -> dict[tuple[str, ...], str]:
    """Return the lines of a page's table by their first columns; none if measured elsewhere."""
    if MEASURED_ON not in text:
        return {}
    table = [line for line in text.splitlines() if line.startswith("| ")]
    return {tuple(cell.strip() for cell in line.split("|")[1:4]): line for line in table}


def page(lines: Iterable[str]) -> str:
    """Return the page with its table."""
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
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
