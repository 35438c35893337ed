"""What the machines of a fleet are: HCAs, ports, GIDs, GPUs, NUMA. Knows no engine."""

__version__ = "0.1.0"
