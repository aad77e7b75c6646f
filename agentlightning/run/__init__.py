"""Run: what owns everything that a run needs, opens it in order and closes it once."""
