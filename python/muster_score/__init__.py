"""Scores rows with independent workers: each shard of the input is worked on by one of them at a time, and its part appears once (docs/scoring.md)."""
