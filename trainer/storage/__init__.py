"""Storage roots: folders, and object stores that use the S3 protocol. No torch."""
