"""The wire protocol: our codec against itself, other codecs, known bytes and broken input."""
