"""The listeners and connections of a broker. A connection receives request frames and sends
response frames. It handles one request at a time."""
