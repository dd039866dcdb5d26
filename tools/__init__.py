"""Programs for developers, apart from the tests."""
