"""What each API does: validate, call a service, answer. One module a family of APIs."""
