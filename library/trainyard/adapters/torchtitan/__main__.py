"""Lists the legal layouts of a torchtitan recipe.

    python -m trainyard.adapters.torchtitan layouts --module M --config C --world-size N [N ...]

`--json` prints JSON, `--toml` the `program.layouts` of a job spec. Further options are torchtitan's
own and change the recipe.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from trainyard.adapters.torchtitan.program_layouts import AXES, program_layouts, toml_of

COLUMNS = (*AXES, "micro_batch_size", "accumulation_steps", "padded_rows")
"""Fields of a layout."""


def main(arguments: Sequence[str]) -> int:
    """Print the layouts; return 1 if a number of ranks has none."""
    parser = argparse.ArgumentParser("python -m trainyard.adapters.torchtitan", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    layouts = commands.add_parser("layouts", allow_abbrev=False)
    layouts.add_argument("--module", required=True, help="module of torchtitan or of your own")
    layouts.add_argument("--config", required=True, help="function that returns the recipe")
    layouts.add_argument(
        "--world-size", type=int, nargs="+", required=True, help="numbers of ranks"
    )
    form = layouts.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON, a line for each world size")
    form.add_argument("--toml", action="store_true", help="print program.layouts of a job spec")
    known, options = parser.parse_known_args(arguments)

    from torchtitan.config import ConfigManager

    from trainyard.adapters.torchtitan.layout_list import legal_layouts

    recipe = ["--module", known.module, "--config", known.config]
    config = ConfigManager().parse_args([*recipe, *options])
    found = [legal_layouts(config, size) for size in known.world_size]
    if known.toml:
        try:
            _write_toml(config, found)
        except ValueError as error:
            sys.stderr.write(f"{error}\n")
            return 1
    else:
        for each in found:
            sys.stdout.write(f"{json.dumps(each) if known.json else _table(each)}\n")
    return 0 if all(each["layouts"] for each in found) else 1


def _write_toml(config: Any, found: Sequence[dict[str, Any]]) -> None:
    """Write the layouts as `program.layouts`, and the reasons of sizes without layouts as errors.

    Raises:
        ValueError: there are more layouts than a job spec may have.
    """
    recipe = {axis: getattr(config.parallelism, field) for axis, field in AXES.items()}
    listed = program_layouts([layout for each in found for layout in each["layouts"]], recipe)
    if listed:
        sys.stdout.write(f"{toml_of(listed)}\n")
    for each in found:
        if not each["layouts"]:
            sys.stderr.write(f"{_table(each)}\n")


def _table(found: dict[str, Any]) -> str:
    """Return the layouts as a table, or the reasons why none is legal."""
    if not found["layouts"]:
        reasons = (f"  {reason}" for reason in found["reasons"])
        return "\n".join([f"No layout of {found['world_size']} ranks is legal:", *reasons])
    rows = [[str(layout[name]) for name in COLUMNS] for layout in found["layouts"]]
    table = [list(COLUMNS), *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(COLUMNS))]
    lines = ("  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in table)
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
