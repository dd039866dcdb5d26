"""Forked ranks compile in the folder of their own attempt, although they were imported before."""

from __future__ import annotations

import pytest

from tests.worker.conftest import Place, wait_for
from tests.worker.launchers.process_launcher import WARM


@pytest.mark.slow
def test_kernels_of_forked_ranks_lie_in_their_run_directory(place: Place) -> None:
    spec = {"compile": {"enabled": True}, "training": {"steps": 2}}
    attempt = place.start(launcher=WARM, ranks=1, spec=spec)
    record = wait_for(lambda: attempt.seen.exit, "exit record", seconds=280)
    assert record.outcome == "succeeded"
    # Archived from there for the next job of the node, and then removed.
    assert list(place.node.kernels.iterdir())
