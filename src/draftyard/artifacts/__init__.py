"""One module per on-disk format: its schema, its writer, its reader, its checks."""
