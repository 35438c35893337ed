"""The machines of a fleet: how they are reached, and how what they are is shown."""
