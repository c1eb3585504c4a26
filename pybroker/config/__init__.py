"""Configuration: the declaration of options, the tables of all options, and the layers in which an
option may have a value.
"""
