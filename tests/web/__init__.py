"""The dashboard in a browser, over servers that run while the tests of the folder do."""
