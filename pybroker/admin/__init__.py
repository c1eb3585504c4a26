"""The broker's HTTP pages: health, readiness, metrics, configuration, controller journal."""
