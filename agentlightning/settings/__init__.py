"""Settings: the fields of a run, each documented under itself, and where their values come from."""
