"""Configuration: the declaration of options, the tables of all options, and the precedence among
the values that an option has in several layers."""
