"""A module whose import leaves a file open: an idle process must not fork after it."""

import os

LEFT: list[int] = []


def preload() -> None:
    LEFT.append(os.open("/etc/passwd", os.O_RDONLY))
