"""The library of Trainyard: what users import, and what the programs share; no torch in it."""
