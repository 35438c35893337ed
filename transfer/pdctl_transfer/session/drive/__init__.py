"""The driver: a loop, connections, workers. The only part of a session with threads, sockets and clocks."""
