"""People: the tables of users and their access, and who submitted a job."""
