"""The log of a broker: how lines look, where they go, and how many of them a peer can cause."""
