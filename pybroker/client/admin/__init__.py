"""Administration by the client: one module a family of calls, and `Admin` over them."""
