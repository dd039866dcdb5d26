"""Command line of an environment build: `python -m worker.environments FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from worker.environments.uv_build import main

if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
