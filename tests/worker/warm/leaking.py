"""What an idle process must not fork after: a module whose import leaves a file open."""

import os

LEFT: list[int] = []


def preload() -> None:
    LEFT.append(os.open("/etc/passwd", os.O_RDONLY))
