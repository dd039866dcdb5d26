"""Basic mechanisms, such as the retry loop. Imports no other package of Trainyard."""
