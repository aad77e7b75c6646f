"""Runners: take rollouts from the store, run the agent on them in threads or processes, and report what came of each
attempt."""
