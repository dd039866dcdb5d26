"""The node itself: its files, hardware, users, processes and the lock that one worker holds."""
