"""The checks; each module has the checks of one stage, or a part of them."""
