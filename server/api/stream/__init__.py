"""`GET /stream`: every change, live."""
