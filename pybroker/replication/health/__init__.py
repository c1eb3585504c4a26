"""Replicas that may lack records that they have acknowledged, and how they leave the ISR."""
