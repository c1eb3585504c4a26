"""One broker, put together from the rooms below, and its life in the cluster."""
