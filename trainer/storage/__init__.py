"""Storage roots: folders, and object stores with the S3 protocol. No torch."""
