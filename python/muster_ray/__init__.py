"""Starts Ray in the independent workers of one job: worker 0 is the head and runs the program, the others join it (docs/ray.md)."""
