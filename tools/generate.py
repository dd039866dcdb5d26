"""Write every generated file of the repository, or with --check list the stale ones."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from server.app.factory import openapi_text
from tools.periodic_docs import periodic_markdown
from tools.permission_docs import permissions_markdown, permissions_typescript
from tools.runtime_lock import runtime_lock_text
from tools.spec_docs import (
    environment_markdown,
    job_schema_text,
    spec_markdown,
    spec_trainer_markdown,
)
from tools.strategy_docs import strategy_markdown

ROOT = Path(__file__).resolve().parent.parent

# A line for each generated file: its path, and the function that returns its text.
GENERATED: Mapping[str, Callable[[], str]] = {
    "deploy/constraints.txt": runtime_lock_text,
    "docs/environment.md": environment_markdown,
    "docs/periodic.md": periodic_markdown,
    "docs/permissions.md": permissions_markdown,
    "docs/spec-trainer.md": spec_trainer_markdown,
    "docs/spec.md": spec_markdown,
    "docs/strategy.md": strategy_markdown,
    "tests/library/spec/job.schema.json": job_schema_text,
    "web/openapi.json": openapi_text,
    "web/src/shared/api/permissions.ts": permissions_typescript,
}


def stale_files(root: Path) -> list[str]:
    """Return the generated files below `root` that are missing or outdated."""
    return [name for name, render in GENERATED.items() if _read(root / name) != render()]


def write_files(root: Path) -> list[str]:
    """Write the stale files below `root` and return their names."""
    stale = stale_files(root)
    for name in stale:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(GENERATED[name](), encoding="utf-8")
    return stale


def main(arguments: Sequence[str] | None = None, *, root: Path = ROOT) -> int:
    """Return the exit status: 1 when `--check` found a stale file."""
    parser = argparse.ArgumentParser(prog="python -m tools.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when stale")
    if not parser.parse_args(arguments).check:
        for name in write_files(root):
            sys.stdout.write(f"wrote {name}\n")
        return 0
    stale = stale_files(root)
    for name in stale:
        sys.stderr.write(f"{name} is stale: run `python -m tools.generate`\n")
    return 1 if stale else 0


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
