"""Registry, handshake and the life of a request on both sides."""
