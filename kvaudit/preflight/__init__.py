"""Preflight: what a configuration says of a deployment, and which known hazards hold for it."""
