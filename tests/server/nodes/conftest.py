"""Fixtures of the tests of nodes."""

from __future__ import annotations

import pytest

from tests.server.harness import Harness
from tests.server.nodes.gpu_node import GpuNode


@pytest.fixture
def node(harness: Harness) -> GpuNode:
    """A node of GPUs, not registered yet."""
    return GpuNode(harness)
