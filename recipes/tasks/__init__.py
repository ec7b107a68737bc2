"""Prompts and verifiable rewards."""
