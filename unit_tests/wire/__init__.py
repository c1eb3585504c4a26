"""The wire protocol: our codec against itself, other codecs, hand-checked bytes and broken input."""
