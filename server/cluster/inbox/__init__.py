"""Messages for workers that fetch them by long polls instead of from the broker."""
