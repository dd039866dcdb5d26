"""What the REST API takes and gives: one model for the server, the SDK and the dashboard."""
