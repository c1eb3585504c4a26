"""The application log of a broker: the format of lines, their destination, their levels, and a
rate limit."""
