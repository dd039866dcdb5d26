"""A seam for rules about what has no engine yet: as if every engine were there."""

import pytest

import specs.rules


@pytest.fixture
def every_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse nothing for the lack of an engine."""
    monkeypatch.setattr(specs.rules, "NOT_SUPPORTED_YET", ())
