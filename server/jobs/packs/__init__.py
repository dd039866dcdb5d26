"""Packs: archives with the code of programs, uploaded by people and fetched by nodes."""
