"""Requests and views of the REST API."""
