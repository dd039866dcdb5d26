"""Images: files are recognized by their content, other images by their attributes. Pixels are
encoded as PNG."""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.run.artifacts.array_copy import copy_array
from trainyard.run.artifacts.artifact_records import MAX_IMAGE_BYTES

MAX_PIXEL_BYTES = 64 * 1024 * 1024
"""Maximum size of an image before compression, in bytes."""
COLOR_TYPES = {1: 0, 3: 2, 4: 6}
"""PNG color type by number of channels: grey, RGB, RGBA."""
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
SNIFFED_BYTES = 16


@dataclass(frozen=True)
class Pixels:
    """An image that is not encoded yet."""

    content: bytes
    height: int
    width: int
    channels: int


def media_type(content: bytes) -> str | None:
    """Return the media type of an image from its first bytes; None for other content."""
    if content.startswith(PNG_SIGNATURE):
        return "image/png"
    if content.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return None


def read_image(image: Any) -> bytes | Pixels:
    """Return an image as the bytes of its file, or as a copy of its pixels.

    Args:
        image: path or bytes of a PNG, JPEG or WebP file; an image of PIL, which is scaled to at
            most 8 bits per value; or numbers of type uint8 with the shape height x width, or height
            x width x channels (1, 3 or 4 channels).

    Raises:
        TypeError: the image has an illegal type.
        ValueError: the image is too large, or has an illegal format or shape.
        OSError: the file cannot be read.
    """
    if isinstance(image, str | os.PathLike):
        with Path(image).open("rb") as file:
            return _file(file.read(MAX_IMAGE_BYTES + 1), f"image={os.fspath(image)!r}")
    if isinstance(image, bytes | bytearray):
        return _file(bytes(image), "image")
    if all(hasattr(image, each) for each in ("mode", "size", "convert", "tobytes")):  # PIL
        if image.mode[0] in "IF":
            image = _grey(image)
        if image.mode not in ("L", "RGB", "RGBA"):
            image = image.convert("RGBA" if "A" in image.mode else "RGB")
        width, height = image.size
        return _checked(Pixels(b"", height, width, len(image.mode)), lambda: image.tobytes())
    found = copy_array(image, what="image", most=MAX_PIXEL_BYTES)
    if found.format.lstrip("=<>") != "B":
        raise TypeError(f"image has numbers of format {found.format!r}: uint8 is legal")
    channels = found.shape[2] if len(found.shape) == 3 else 1
    if len(found.shape) not in (2, 3) or channels not in COLOR_TYPES:
        raise ValueError(
            f"image has the shape {found.shape}: legal are height x width, or height x width x 1, "
            "3 or 4"
        )
    pixels = Pixels(b"", found.shape[0], found.shape[1], channels)
    return _checked(pixels, lambda: found.content)


def _grey(image: Any) -> Any:
    """Convert a PIL image of 16 or 32 bits per pixel to 8 bits; PIL's own conversion would clip.

    For 16 bits, white is 65,535. For 32 bits, white is the smallest of 1 (only for floats), 255 and
    65,535 that no pixel exceeds. If a pixel exceeds 65,535, white is the brightest pixel.
    """
    deep = image if image.mode == "F" else image.convert("I").convert("F")
    brightest = deep.getextrema()[1]
    tops = (65535,) if image.mode[:2] == "I;" else (1, 255, 65535)[image.mode == "I" :]
    factor = 255 / next((top for top in tops if brightest <= top), brightest)
    return deep.point(lambda value: value * factor + 0).convert("L")


def encode_png(pixels: Pixels) -> bytes:
    """Return a PNG file; compress fast, because this runs in a thread of the training process."""
    row = pixels.width * pixels.channels
    compressor = zlib.compressobj(1)
    parts: list[bytes] = []
    rows = max(65536 // row, 1)
    for start in range(0, pixels.height, rows):
        # Each row starts with its filter type, 0 (none). zlib releases the interpreter's lock.
        lines = (
            b"\0" + pixels.content[each * row : (each + 1) * row]
            for each in range(start, min(start + rows, pixels.height))
        )
        parts.append(compressor.compress(b"".join(lines)))
    parts.append(compressor.flush())
    header = struct.pack(
        ">IIBBBBB", pixels.width, pixels.height, 8, COLOR_TYPES[pixels.channels], 0, 0, 0
    )
    return b"".join(
        (PNG_SIGNATURE, _chunk(b"IHDR", header), _chunk(b"IDAT", b"".join(parts)), _chunk(b"IEND"))
    )


def _chunk(kind: bytes, content: bytes = b"") -> bytes:
    checksum = zlib.crc32(content, zlib.crc32(kind))
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def _file(content: bytes, what: str) -> bytes:
    if len(content) > MAX_IMAGE_BYTES:
        raise ValueError(f"{what} has more than {MAX_IMAGE_BYTES:,} bytes, which are the most")
    if media_type(content) is None:
        raise ValueError(f"{what} is no PNG, JPEG or WebP file: these are legal")
    return content


def _checked(pixels: Pixels, content: Any) -> Pixels:
    size = pixels.height * pixels.width * pixels.channels
    if not 0 < size <= MAX_PIXEL_BYTES:
        raise ValueError(
            f"image has {pixels.height} x {pixels.width} x {pixels.channels} bytes: legal are 1 to "
            f"{MAX_PIXEL_BYTES:,} together"
        )
    return Pixels(content(), pixels.height, pixels.width, pixels.channels)
