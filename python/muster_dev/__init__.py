"""JupyterLab as the first process of a job that holds devices, until it is idle (docs/dev.md)."""
