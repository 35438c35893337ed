"""vLLM as an engine of a fleet."""
