"""Skips tests that an older torch refuses; tests/trainer/test_torch_versions.py has the refusal."""

import pytest

from trainer.torch_versions import SPLITS_BACKWARD

REFUSED = pytest.mark.skip(reason="this version of torch does not split a backward")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        trains = item.path.name != "test_torch_versions.py"
        if trains and "ZeroBubble" in item.name and not SPLITS_BACKWARD:
            item.add_marker(REFUSED)
