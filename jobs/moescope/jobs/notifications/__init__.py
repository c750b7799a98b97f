"""Notifications: what they say, and how they reach people."""
