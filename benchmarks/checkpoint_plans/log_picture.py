"""Draws curves on two logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from trainyard.prove.picture import svg

WIDTH, HEIGHT = 860, 420
LEFT, RIGHT, TOP, BOTTOM = 72, 190, 56, 56
# Okabe and Ito's palette, which colour-blind people can distinguish, and a brown.
COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#aa4499", "#56b4e9", "#e69f00", "#000000", "#999999"),
    "#7f4f24",
)
DASHES = ' stroke-dasharray="6 4"'

Curve = Sequence[tuple[int, float]]


def log_picture(
    curves: Mapping[str, Curve],
    *,
    caption: str,
    yardstick: tuple[str, Mapping[str, Curve]] = ("", {}),
) -> str:
    """Return an SVG of seconds over ranks, each curve with its name at the right.

    Args:
        curves: points by name.
        caption: title of the picture.
        yardstick: a name, and curves for comparison: dashed, in the colour of the curve with the
            same name.

    Raises:
        ValueError: there are no points.
    """
    kind, dashed = yardstick
    points = [point for each in (curves, dashed) for curve in each.values() for point in curve]
    if not points:
        raise ValueError("a picture needs points")
    x_axis = _Axis([x for x, _ in points], (LEFT, WIDTH - RIGHT), base=2)
    y_axis = _Axis([y for _, y in points], (HEIGHT - BOTTOM, TOP), base=10)
    parts = [f'<text x="{LEFT}" y="28" font-size="16" fill="#1c2430">{escape(caption)}</text>']
    parts += [
        _text(x_axis.at(mark), HEIGHT - BOTTOM + 20, text=f"{mark:g}", anchor="middle")
        for mark in x_axis.marks
    ]
    for mark in y_axis.marks:
        y = y_axis.at(mark)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#eceff3"/>')
        parts.append(_text(LEFT - 8, y + 4, text=f"{mark:g} s", anchor="end"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, text="ranks", anchor="middle"))
    for number, (name, curve) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        parts += _curve(curve, (x_axis, y_axis), colour=colour)
        parts += _curve(dashed.get(name, ()), (x_axis, y_axis), colour=colour, dashes=DASHES)
        parts += _legend(number, name, colour=colour)
    if dashed:
        parts += _legend(len(curves), kind, colour="#5b6675", dashes=DASHES)
    return svg(parts, width=WIDTH, height=HEIGHT, caption=caption)


class _Axis:
    """Maps values to pixels by their logarithm, from one power of the base to another."""

    def __init__(self, values: Sequence[float], pixels: tuple[int, int], *, base: int) -> None:
        self._low = math.floor(math.log(min(values), base))
        self._high = max(math.ceil(math.log(max(values), base)), self._low + 1)
        self._pixels, self._base = pixels, base
        self.marks = [float(base) ** power for power in range(self._low, self._high + 1)]

    def at(self, value: float) -> float:
        share = (math.log(value, self._base) - self._low) / (self._high - self._low)
        return self._pixels[0] + share * (self._pixels[1] - self._pixels[0])


def _curve(curve: Curve, axes: tuple[_Axis, _Axis], *, colour: str, dashes: str = "") -> list[str]:
    places = [(axes[0].at(x), axes[1].at(y)) for x, y in sorted(curve)]
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
    if len(places) < 2:
        return dots
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    return [f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>', *dots]


def _legend(number: int, name: str, *, colour: str, dashes: str = "") -> list[str]:
    x, y = WIDTH - RIGHT + 16, TOP + 20 * number
    return [
        f'<path d="M{x} {y - 5}h16" stroke="{colour}" stroke-width="3"{dashes}/>',
        _text(x + 22, y, text=name, anchor="start"),
    ]


def _text(x: float, y: float, *, text: str, anchor: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#5b6675">{escape(text)}</text>'
    )
