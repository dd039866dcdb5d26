"""The first schema, in three parts; tables of a part may refer to tables of the parts before."""
