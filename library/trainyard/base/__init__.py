"""Basic mechanisms, such as the retry loop; imports no other package of Trainyard."""
