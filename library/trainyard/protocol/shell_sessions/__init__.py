"""Commands in running attempts: messages of their supervisors, and requests and views of people."""
