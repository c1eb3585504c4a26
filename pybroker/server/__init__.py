"""The listeners and connections of a broker. A connection handles one request at a time."""
