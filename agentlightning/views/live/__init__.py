"""Live: a run as it goes, in a terminal, in a notebook, or as plain lines."""
