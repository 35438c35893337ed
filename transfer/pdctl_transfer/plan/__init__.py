"""Plans: pure, address-free, provable."""
