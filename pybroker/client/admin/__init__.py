"""The admin client: the class `Admin`, and one module for each family of requests."""
