"""The engine's HTTP face: SGLang's API, as far as routers and clients of a PD pair use it."""
