"""The application log of a broker: the format of lines, where they are written, the levels of
loggers, and a limit on repeated lines.
"""
