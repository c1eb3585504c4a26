"""Replicas that may lack acknowledged records, and their removal from the ISR."""
