"""Calls like one before: found by a key, and run without deciding anything."""
