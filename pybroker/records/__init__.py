"""Record batches (magic 2): headers, checksums, compression, encoding and validation. No I/O."""
