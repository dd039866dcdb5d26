"""The plans in previews."""

from __future__ import annotations

from trainyard.planner.results import Plan
from trainyard.protocol.rest.resume import ResumePreview


def planned(shown: ResumePreview) -> Plan:
    """Return the plan of a job of the built-in trainer."""
    assert isinstance(shown.plan, Plan)
    return shown.plan
