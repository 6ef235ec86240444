"""Stands in for JupyterLab: answers /api/status and /api/kernels to those who have the token."""
