"""The operators' commands, one a module, with Kafka's names, flags, output and exit codes."""
