"""The fleet file: model, reading with line numbers, schema."""
