"""HTTP mechanisms that every endpoint uses: bodies, paging, problem documents, middleware."""
