"""What an idle process must not fork after: a module whose import leaves a thread."""

import threading


def preload() -> None:
    threading.Thread(target=threading.Event().wait, name="left").start()
