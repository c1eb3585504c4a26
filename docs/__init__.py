"""The user's guides, and the programs that generate parts of them from the code."""
