"""Planted faults: each occurs once in its module, and a run names the test that finds it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools.faults import ROOT, Fault, read_faults


def test_each_fault_stands_once_in_its_module() -> None:
    faults = read_faults(ROOT)
    assert len({fault.module for fault in faults}) == len(faults) == 20
    for fault in faults:
        text = (ROOT / fault.module).read_text(encoding="utf-8")
        assert text.count(fault.line) == 1, fault
        planted = text.replace(fault.line, fault.instead)
        assert ast.dump(ast.parse(planted)) != ast.dump(ast.parse(text)), fault


def test_a_fault_is_planted_or_refused(tmp_path: Path) -> None:
    module = tmp_path / "server" / "a.py"
    module.parent.mkdir()
    module.write_text("x = 1\ny = 2\n")
    Fault("server/a.py", "y = 2", "y = 3").plant(tmp_path)
    assert module.read_text() == "x = 1\ny = 3\n"
    with pytest.raises(ValueError, match="stands there 0 times, not once"):
        Fault("server/a.py", "y = 2", "y = 3").plant(tmp_path)
    with pytest.raises(ValueError, match="stands there 2 times, not once"):
        Fault("server/a.py", " = ", " is ").plant(tmp_path)
