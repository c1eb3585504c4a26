"""Kafka's wire protocol as values: bytes in, messages out, and back. No socket, loop, clock or
logging."""
