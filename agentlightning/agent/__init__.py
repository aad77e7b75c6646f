"""Agent: how user code is found, called and handed its resources, and what counts as one of its agents. Loads no
torch."""
