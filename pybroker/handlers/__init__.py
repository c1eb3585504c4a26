"""The handlers of all APIs, one module for each family. A handler validates a request, calls a
service, and returns the response."""
