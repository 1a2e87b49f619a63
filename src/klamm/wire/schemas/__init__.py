"""Schemas of the control requests, written for klamm; kafka-python loads them by package name."""
