"""Fast tests: no processes, no network, no Java."""
