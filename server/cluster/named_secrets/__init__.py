"""Secrets by name, of projects and users: no response has their values, and jobs get them."""
