"""Scheduled jobs of the owner: what they are, when they run, and what became of each run."""
