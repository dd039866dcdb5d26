"""Mechanisms below everything else: numbers, problems, retries. Imports no other package of ours."""
