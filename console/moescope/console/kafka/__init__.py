"""What the command line does with the broker: topics, dead letters, checks."""
