"""Mechanisms below everything else, such as the retry loop; imports no other package of ours."""
