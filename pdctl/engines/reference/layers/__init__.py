"""The layers of the reference models: each says what it keeps between tokens, and computes one span of tokens."""
