"""Byte work, pure but for the memory it is given: packing, copying, checksums, costs, what a rank writes into another."""
