"""Fixtures of the tests of nodes."""

from __future__ import annotations

import pytest

from tests.server.cluster.nodes.gpu_node import GpuNode
from tests.server.harness import Harness


@pytest.fixture
def node(harness: Harness) -> GpuNode:
    """A node of GPUs, not registered yet."""
    return GpuNode(harness)
