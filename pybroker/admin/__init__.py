"""The HTTP pages of a broker: health, readiness, metrics, configuration and controller journal."""
