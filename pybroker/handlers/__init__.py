"""The request handlers, one module for each family of APIs. A handler validates a request, calls a
service, and returns the response.
"""
