"""All advice rules as one pure function from observations of a job to findings.

Each rule names one remedy, and finds nothing below its minimum share of time.
"""

from __future__ import annotations

from server.telemetry.advice.advice_input import Observed
from server.telemetry.advice.slot_findings import SLOT_RULES
from server.telemetry.advice.step_findings import STEP_RULES
from trainyard.protocol.goodput import AdviceFinding


def findings_of(observed: Observed) -> tuple[AdviceFinding, ...]:
    """Return the findings on what slows a job, the largest share first."""
    found = (finding for rule in (*STEP_RULES, *SLOT_RULES) for finding in rule(observed))
    return tuple(sorted(found, key=lambda each: -each.share))
