"""Reads the systemd units of deploy/."""

from __future__ import annotations

import configparser
import shlex
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UNITS = sorted((ROOT / "deploy").glob("*.service"))


def read_unit(path: Path) -> configparser.ConfigParser:
    """Return the sections of a unit."""
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # systemd's names have case
    unit.read(path)
    return unit


def start_command(path: Path, key: str = "ExecStart") -> list[str]:
    """Return the words that a unit starts under a key, as its process gets them."""
    return shlex.split(read_unit(path)["Service"][key].replace("$$", "$"))
