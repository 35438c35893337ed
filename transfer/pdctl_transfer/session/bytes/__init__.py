"""Byte work, pure but for the memory it is given: packing, copying, checksums, costs, who writes what into whom."""
