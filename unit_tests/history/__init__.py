"""The judge of histories, judged."""
