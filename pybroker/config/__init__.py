"""Configuration: the declaration of options, the tables of options, and the precedence of
values."""
