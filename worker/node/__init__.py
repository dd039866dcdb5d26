"""The node itself: its files, hardware, users and processes, and the lock of its worker."""
