"""The Spark pipeline over topic snapshots."""
