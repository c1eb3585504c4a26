"""What a broker shows of itself over HTTP: health, readiness, metrics, configuration."""
