"""A module whose import hangs, like on a disk that does not answer."""

import time


def preload() -> None:
    time.sleep(600)
