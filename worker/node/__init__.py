"""The node itself: files, hardware, users and processes, and the lock of its worker."""
