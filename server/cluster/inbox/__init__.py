"""Messages that workers fetch by long polls instead of from the broker."""
