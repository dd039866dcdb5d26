"""Measures every row of the numerics table and writes docs/numerics.md.

python -m tests.trainer.numerics
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import torch

from tests.trainer.numerics.measure import LOSS_TOLERANCE, NORM_TOLERANCE, Errors, measure
from tests.trainer.numerics.rows import ROWS, SPEC, Row

PAGE = Path(__file__).parents[3] / "docs" / "numerics.md"


def main() -> int:
    """Write the page; 1 when a row is out of its tolerance."""
    measured: list[tuple[Row, Errors]] = []
    for row in ROWS:
        errors = measure(row)
        measured.append((row, errors))
        verdict = "" if errors.within else "  OUT OF TOLERANCE"
        sys.stdout.write(f"{row}: loss {errors.loss:.1e}, norm {errors.norm:.1e}{verdict}\n")
        sys.stdout.flush()
    PAGE.write_text(page(measured))
    return 0 if all(errors.within for _, errors in measured) else 1


def page(measured: list[tuple[Row, Errors]]) -> str:
    """Return the page with its table."""
    lines = [
        f"| {row.layout} | {row.layout.world_size} | {row.options or '-'} "
        f"| {errors.loss:.1e} | {errors.norm:.1e} |"
        for row, errors in measured
    ]
    training = SPEC["training"]
    return "\n".join(
        [
            "# Numerics: every layout against one rank",
            "",
            "Written by `python -m tests.trainer.numerics`; do not edit. "
            "`make test` checks the first steps of the quick rows, `make test-all` all of this.",
            "",
            f"Each row trains the same small model (4 layers, 8 heads, dropout 0.1) for "
            f"{training['steps']} steps of {training['global_batch_size']} sequences of "
            f"{training['seq_len']} tokens in float32, through the trainer, and is "
            "compared with one rank. The errors are the largest relative ones over all steps. "
            f"Tolerated are {LOSS_TOLERANCE:g} for the loss and {NORM_TOLERANCE:g} for the norm of "
            "the gradient. Sums in another order alone give some 1e-7.",
            "",
            f"torch {torch.__version__}, gloo, {platform.machine()}.",
            "",
            "| layout | ranks | options | loss | gradient norm |",
            "|---|---|---|---|---|",
            *lines,
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
