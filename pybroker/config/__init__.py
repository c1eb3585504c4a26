"""Configuration: how an option is declared, the tables of all options, and which of several values
of an option is in force."""
