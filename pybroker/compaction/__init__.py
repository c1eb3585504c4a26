"""Log compaction: keeps the last record of each key in the logs of compacted topics."""
