"""Storage roots: folders, and object stores that speak S3. No torch."""
