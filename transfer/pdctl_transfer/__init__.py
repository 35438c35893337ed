"""The transfer core that pdctl ships into both sides of a prefill/decode pair."""

__version__ = "0.1.0"
