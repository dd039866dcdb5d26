"""A module whose import leaves a thread: an idle process must not fork after it."""

import threading


def preload() -> None:
    threading.Thread(target=threading.Event().wait, name="left").start()
