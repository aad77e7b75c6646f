"""Policies: trainable models as a run sees them, behind the port of algorithms/ports.py. What samples and what learns
is named in here alone."""
