"""The state machines: events in, actions out. No thread, socket, clock or fabric."""
