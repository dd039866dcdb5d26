"""Images of PIL with more than eight bits a pixel are scaled, not clipped."""

from __future__ import annotations

import pytest
from PIL import Image

from trainyard.run.artifacts.images import Pixels, read_image


@pytest.mark.parametrize(
    ("mode", "values", "shown"),
    [
        ("I;16", (0, 16384, 32768, 65535), (0, 63, 127, 255)),
        ("I;16", (0, 1, 2, 255), (0, 0, 0, 0)),
        ("I", (0, 16384, 32768, 49152), (0, 63, 127, 191)),
        ("I", (0, 10, 100, 255), (0, 10, 100, 255)),
        ("I", (-5, 0, 500_000, 1_000_000), (0, 0, 127, 255)),
        ("F", (-1.0, 0.0, 0.5, 1.0), (0, 0, 127, 255)),
        ("F", (0.0, 1.5, 100.0, 255.0), (0, 1, 100, 255)),
    ],
)
def test_an_image_of_more_than_eight_bits_is_scaled(
    mode: str, values: tuple[float, ...], shown: tuple[int, ...]
) -> None:
    given = Image.new(mode, (4, 1))
    for place, value in enumerate(values):
        given.putpixel((place, 0), value)
    pixels = read_image(given)
    assert isinstance(pixels, Pixels)
    assert (pixels.width, pixels.height, pixels.channels) == (4, 1, 1)
    assert [*pixels.content] == pytest.approx(shown, abs=1)
