"""The operators' commands. Each module is one command, with the flags, output and exit codes of
Kafka's tool."""
