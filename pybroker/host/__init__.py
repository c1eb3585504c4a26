"""A broker as a process of the operating system, and its child processes."""
