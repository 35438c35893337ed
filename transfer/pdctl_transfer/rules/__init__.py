"""Rules over a pair of manifests: pure functions, one idea a file, listed and not discovered."""
