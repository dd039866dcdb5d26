"""Work for workers that fetch their messages by long polls instead of from the broker."""
