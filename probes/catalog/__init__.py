"""Probe scenarios, one file each, one list by hand."""
