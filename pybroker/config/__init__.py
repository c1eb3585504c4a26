"""Options: how one is declared, the tables of them, and which of several values holds."""
