"""Folders nested deeper than Python's recursion limit, which any program can make."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

NEST = """
import os, sys
os.chdir(sys.argv[1])
name = "d" * int(sys.argv[2])
for _ in range(3000):
    os.mkdir(name)
    os.chdir(name)
open("file", "w").close()
"""


def nest(top: Path, *, length: int = 1) -> None:
    """Make nested folders with names of a given length."""
    subprocess.run([sys.executable, "-c", NEST, str(top), str(length)], check=True)
