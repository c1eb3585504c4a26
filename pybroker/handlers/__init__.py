"""The handlers of all APIs: validate, call a service, answer. One module a family of APIs."""
