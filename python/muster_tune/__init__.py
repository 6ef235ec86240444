"""Tries settings of a program, a trial each, by independent workers (docs/tuning.md)."""
