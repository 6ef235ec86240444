"""Writes what jobs report to experiment trackers, and tells people of jobs' ends: beside musterd, never in a training's way (docs/tracking.md).

Standard library only, but for wandb, which runs in an environment of its own.
"""
