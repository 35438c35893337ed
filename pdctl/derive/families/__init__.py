"""State families: each reads the keys it knows of a config, or says that they are absent."""
