"""Run tasks where the bytes lie: in threads of this process, or on the workers of a dask cluster."""
