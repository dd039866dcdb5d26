"""The results of `benchmarks.strategies` as a table, as JSON, and as a picture."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

from trainyard.prove.picture import DrawnLine, draw

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send")
WIDEST = 7


@dataclass
class Measured:
    """A strategy that ran."""

    name: str
    layout: str
    ranks: int
    tokens_per_second: float
    """Per device, without data and reports; the median of the later steps."""
    peak_gib: float
    """Reserved on a GPU, resident on a CPU; of the rank with the largest value."""
    tensors_mib: float
    """Counted peak of tensors on one rank, eager."""
    sent_bytes: dict[str, int]
    """Counted bytes that a rank sends in a step, by kind of collective."""
    losses: list[float]
    """Loss of each step."""
    load: float
    """Load average of the machine during the run, including its own ranks."""
    off: float = 0.0
    """Relative distance of the final loss from the reference."""
    tolerance: float = 0.0
    """Limit of that distance."""


@dataclass(frozen=True)
class NotRun:
    """A strategy that cannot run here."""

    name: str
    reason: str


@dataclass(frozen=True)
class Results:
    """All results, and the machine of the measurement."""

    date: str
    device: str
    machine: dict[str, object]
    versions: dict[str, str]
    model: str
    steps: int
    passed: bool
    measured: list[Measured]
    not_run: list[NotRun]

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return asdict(self)

    @classmethod
    def of_json(cls, values: dict[str, Any]) -> Self:
        """Return the value from the output of `as_json`."""
        measured = [Measured(**one) for one in values["measured"]]
        not_run = [NotRun(**one) for one in values["not_run"]]
        return cls(**{**values, "measured": measured, "not_run": not_run})


def table(results: Results) -> str:
    """Return the table in Markdown, followed by the strategies that did not run."""
    kinds = [kind for kind in KINDS if any(kind in one.sent_bytes for one in results.measured)]
    unsaid = {kind for one in results.measured for kind in one.sent_bytes} - set(KINDS)
    assert not unsaid, f"no column for {unsaid}"
    header = ["strategy", "layout", "tokens/s a device", "peak GiB", "tensors MiB"]
    header += [f"{kind.replace('_', '-')} MiB" for kind in kinds] + ["final loss", "load"]
    rows = [header, ["---"] * len(header)]
    for one in results.measured:
        row = [one.name, one.layout, f"{one.tokens_per_second:,.0f}", f"{one.peak_gib:.2f}"]
        row += [f"{one.tensors_mib:,.1f}"]
        row += [_mebibytes(one.sent_bytes.get(kind, 0)) for kind in kinds]
        rows.append([*row, f"{one.losses[-1]:.4f}", f"{one.load:g}"])
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines += [f"\n{one.name} did not run here: {one.reason}" for one in results.not_run]
    machine, versions = results.machine, results.versions
    lines.append(
        f"\n{results.model}, {results.steps} steps; {results.date}, {results.device}, "
        f"{machine['cpus']} cores ({machine['processor']}, {machine['memory_gib']} GiB), "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
    )
    return "\n".join(lines) + "\n"


def picture(results: Results) -> str:
    """Return the losses over the steps as an SVG; later lines are narrower, to show all."""
    first, *others = [
        DrawnLine(one.name, list(enumerate(one.losses, 1)), width=max(WIDEST - index, 1))
        for index, one in enumerate(results.measured)
    ]
    caption = f"Loss under each strategy ({results.model.partition(',')[0]}, {results.device})"
    return draw(first, others, caption=caption)


def _mebibytes(count: int) -> str:
    """Return a size with significant decimals; norms alone have only some bytes."""
    return "< 0.01" if 0 < count < 2**20 / 100 else f"{count / 2**20:,.2f}" if count else "0"
