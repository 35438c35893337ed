"""Engine adapters: command lines, readiness, live layouts; they know no launcher."""
