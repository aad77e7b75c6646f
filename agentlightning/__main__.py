"""``python -m agentlightning``: the ``agl`` command, where its script is not on the path."""

from agentlightning.cli import main

if __name__ == "__main__":
    main()
