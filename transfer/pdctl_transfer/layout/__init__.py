"""Layouts: what each rank of one side holds, byte by byte. Imports neither numpy nor an HTTP client."""
