"""The asyncio client: connections, metadata, producer, consumer, admin. Imports layers L0 to L2
only."""
