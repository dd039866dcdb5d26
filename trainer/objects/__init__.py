"""Object stores that speak S3: paths, calls, uploads in parts, reads of ranges. No torch."""
