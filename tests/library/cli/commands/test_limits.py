"""Truncated lists: a note outside the output names the rest."""

from __future__ import annotations

import json

from tests.library.conftest import Run, Yard


def test_a_list_that_is_cut_notes_it(yard: Yard, run: Run) -> None:
    job_id, _ = yard.harness.running(name="long")
    yard.harness.submit(name="other")
    cut = run("events", job_id, "--limit", "1")
    assert "Only 1 are shown; --limit N shows more." in cut.stderr
    assert "shown" not in run("events", job_id).stderr
    cut = run("ps", "--limit", "1", "--json")
    assert len(json.loads(cut.stdout)) == 1
    assert "--limit N shows more" in cut.stderr
