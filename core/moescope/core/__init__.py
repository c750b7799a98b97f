"""Shared ground of moescope: vocabulary, routing batch and codec, batch log, registry, settings."""
