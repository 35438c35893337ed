"""`make demo`: the default fleet beside an aggregate engine, and whether the two say the same."""
