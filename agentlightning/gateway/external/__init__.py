"""External: calls to somebody else's models, forwarded and recorded as they are. None of their tokens is trained."""
