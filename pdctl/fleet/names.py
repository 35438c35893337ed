"""What a fleet, a pool or a role may be called: names become folders, units and labels."""

NAME_PATTERN = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
