"""The admin client. The class `Admin` has the operations, and each of the other modules sends the
requests of one family, such as topics or groups."""
