"""Layouts: every axis trains the same sequences to the same losses as one rank."""

from __future__ import annotations

from typing import Any

from trainyard.prove.bench import Bench
from trainyard.prove.figures import Figure, reported
from trainyard.prove.rungs.small_job import COMPARED, as_one_rank, one_rank, small_job


def layouts(slots: int) -> dict[str, tuple[int, dict[str, Any]]]:
    """Return ranks and parallel axes by name, for all layouts that a number of slots allows."""
    found: dict[str, tuple[int, dict[str, Any]]] = {}
    if slots > 1:
        found[f"fsdp-{slots}"] = (slots, {})
    if slots > 2:
        # A number of ranks that does not divide the batch: some ranks have fewer sequences.
        found[f"fsdp-{slots - 1}"] = (slots - 1, {})
    half = slots // 2  # an odd number of slots leaves one out
    if half > 1:
        found[f"hsdp-2x{half}"] = (2 * half, {"dp_replicate": 2})
    for axis in ("tp", "cp", "pp") if half else ():
        name = f"{axis}-2" if half == 1 else f"fsdp-{half}-{axis}-2"
        found[name] = (2 * half, {axis: 2})
    if slots // 4 > 1:
        found[f"fsdp-{slots // 4}-tp-2-pp-2"] = (slots // 4 * 4, {"tp": 2, "pp": 2})
    return found


def layout(bench: Bench, *, name: str, steps: int, total_steps: int) -> list[Figure]:
    """Train the first steps of the small job on a layout, and compare them with one rank."""
    ranks, axes = layouts(bench.slots)[name]
    document = small_job(bench, name, steps=steps, ranks=ranks, total_steps=total_steps, axes=axes)
    bench.require(document)
    expected = one_rank(bench, steps=total_steps)
    job = bench.finish(document)
    attempt = job.current_attempt
    return [
        *as_one_rank(bench, bench.course(job.id, *COMPARED), expected, steps=steps),
        reported("layout", attempt.layout_name if attempt else "unknown"),
    ]
