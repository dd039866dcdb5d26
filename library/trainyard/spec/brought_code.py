"""Which fields of a spec run code of the job, or could."""

from __future__ import annotations

from trainyard.spec.environment import environment_problems
from trainyard.spec.job import JobSpec


def fields_with_code(spec: JobSpec) -> tuple[str, ...]:
    """Return the fields of a spec that run code of the job, or could: none where the trainer runs.

    Such a job is not trusted by others: nothing that it leaves on a node or measures is shared.
    """
    fields = [p.pointer[1:].replace("/", ".") for p in environment_problems(spec.env)]
    if spec.model.factory is not None:
        fields.append(f"model.factory={spec.model.factory!r}")
    if spec.program is not None:
        fields.append("program")
    return tuple(fields)
