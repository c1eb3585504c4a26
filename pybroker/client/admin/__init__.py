"""The admin client: the class `Admin`, and a module for each family of its operations."""
