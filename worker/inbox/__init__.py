"""How messages reach the worker: through the broker, or by long polls of the server."""
