"""Messages that workers fetch by long polls, in place of the broker."""
