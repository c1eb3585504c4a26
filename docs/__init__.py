"""The user's guides, and what makes the parts of them that come from the code."""
