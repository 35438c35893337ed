"""SGLang 0.5.x as an engine of a fleet."""
