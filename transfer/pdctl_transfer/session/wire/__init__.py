"""What crosses the wire: frames and typed messages. No state of a request."""
