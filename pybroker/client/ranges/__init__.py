"""Reading, counting and checking of exact offset ranges of partitions."""
