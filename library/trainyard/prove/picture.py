"""Draws the loss of an uninterrupted run and of one that was resumed on other world sizes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 860, 380
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 64, 56
# Okabe and Ito's palette, which colour-blind people can distinguish.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#aa4499", "#56b4e9", "#e69f00")


@dataclass(frozen=True)
class DrawnLine:
    """The steps of one attempt."""

    label: str
    """Its world size or layout."""
    points: Sequence[tuple[int, float]]
    """Step and loss, in order of the steps."""
    width: int = 2
    """Of its line; of lines that cover each other the later should be narrower."""


def draw(uninterrupted: DrawnLine, resumed: Sequence[DrawnLine], *, caption: str) -> str:
    """Return an SVG: the uninterrupted run as a wide pale band, the attempts as lines upon it.

    Raises:
        ValueError: a segment has no points.
    """
    everything = [point for segment in (uninterrupted, *resumed) for point in segment.points]
    if not all(segment.points for segment in (uninterrupted, *resumed)):
        raise ValueError("every segment needs points")
    scale = _Scale(everything)
    parts = [*_frame(scale, caption), _line(scale, uninterrupted, "#c9ced6", width=9)]
    legend = [("#c9ced6", uninterrupted.label)]
    for index, segment in enumerate(resumed):
        colour = COLOURS[index % len(COLOURS)]
        parts.append(_line(scale, segment, colour, width=segment.width))
        parts.append(_boundary(scale, segment, colour))
        legend.append((colour, segment.label))
    parts += _legend(legend)
    return svg(parts, width=WIDTH, height=HEIGHT, caption=caption)


def svg(parts: Iterable[str], *, width: int, height: int, caption: str) -> str:
    """Return an SVG of drawn parts on a white card; the caption is its title for readers."""
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="system-ui, sans-serif" font-size="13" role="img">\n'
        f"<title>{escape(caption)}</title>\n"
        f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


class _Scale:
    """Maps steps and losses to the picture."""

    def __init__(self, points: Sequence[tuple[int, float]]) -> None:
        steps = [step for step, _ in points]
        losses = [loss for _, loss in points]
        self.steps = (min(steps), max(steps))
        margin = 0.05 * (max(losses) - min(losses)) or 1.0
        self.losses = (min(losses) - margin, max(losses) + margin)

    def x(self, step: float) -> float:
        low, high = self.steps
        return LEFT + (step - low) / max(high - low, 1) * (WIDTH - LEFT - RIGHT)

    def y(self, loss: float) -> float:
        low, high = self.losses
        return TOP + (high - loss) / (high - low) * (HEIGHT - TOP - BOTTOM)


def _frame(scale: _Scale, caption: str) -> list[str]:
    """Return caption, axes and grid, with about five marks on each axis."""
    bottom = HEIGHT - BOTTOM
    parts = [f'<text x="{LEFT}" y="28" font-size="16" fill="#1c2430">{escape(caption)}</text>']
    for index in range(6):
        loss = scale.losses[0] + (scale.losses[1] - scale.losses[0]) * index / 5
        y = scale.y(loss)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#eceff3"/>')
        parts.append(
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" '
            f'fill="#5b6675">{loss:.2f}</text>'
        )
        step = round(scale.steps[0] + (scale.steps[1] - scale.steps[0]) * index / 5)
        parts.append(
            f'<text x="{scale.x(step):.1f}" y="{bottom + 20}" text-anchor="middle" '
            f'fill="#5b6675">{step}</text>'
        )
    parts.append(f'<path d="M{LEFT} {bottom}H{WIDTH - RIGHT}" stroke="#9aa4b2"/>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{HEIGHT - 12}" text-anchor="middle" fill="#5b6675">step</text>'
    )
    return parts


def _line(scale: _Scale, segment: DrawnLine, colour: str, *, width: int) -> str:
    path = "L".join(f"{scale.x(step):.1f} {scale.y(loss):.1f}" for step, loss in segment.points)
    return (
        f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="{width}" '
        f'stroke-linejoin="round" stroke-linecap="round"/>'
    )


def _boundary(scale: _Scale, segment: DrawnLine, colour: str) -> str:
    """Return the mark at the first step of an attempt that went on from another."""
    if segment.points[0][0] == scale.steps[0]:
        return ""
    x = scale.x(segment.points[0][0] - 0.5)
    return f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="{colour}" stroke-dasharray="3 4"/>'


def _legend(entries: Sequence[tuple[str, str]]) -> list[str]:
    parts, x = [], float(LEFT)
    for colour, label in entries:
        if x + 24 + 7.2 * len(label) > WIDTH:
            break  # the lines are in order; their boundaries show the others
        parts.append(f'<rect x="{x:.0f}" y="41" width="18" height="6" rx="3" fill="{colour}"/>')
        parts.append(f'<text x="{x + 24:.0f}" y="49" fill="#1c2430">{escape(label)}</text>')
        x += 24 + 7.2 * len(label) + 22
    return parts
