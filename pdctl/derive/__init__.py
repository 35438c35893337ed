"""Layout manifests derived from a model config and engine arguments. Imports neither numpy nor an HTTP client."""
