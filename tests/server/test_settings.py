"""Settings that changed their names."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from server.settings import Settings


def test_a_former_name_is_refused_and_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_CHORES_KEPT_DAYS", "0")
    with pytest.raises(ValidationError, match="is now TRAINYARD_OPERATIONS_KEPT_DAYS"):
        Settings()
