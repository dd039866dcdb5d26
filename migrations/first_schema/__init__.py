"""The first schema, in three parts; each creates tables that refer to those before."""
