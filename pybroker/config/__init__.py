"""Options: their declaration, their tables, and the precedence of their values."""
