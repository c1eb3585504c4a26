"""One module a family of APIs; a message is one dataclass for all of its versions."""
