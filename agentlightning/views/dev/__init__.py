"""Dev: what a few rollouts without training say about an agent."""
