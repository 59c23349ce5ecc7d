"""Calls like one before: found by a key, and launched without planning."""
