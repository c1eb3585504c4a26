"""Record batches (magic 2): headers, CRC, compression, encoding, validation. Pure."""
