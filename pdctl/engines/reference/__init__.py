"""The reference engine: a small hybrid model with every kind of state that PD moves."""
