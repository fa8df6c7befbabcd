"""Run tasks where the bytes lie: in threads of this process, or on the workers of a dask cluster."""

from __future__ import annotations

from ms_recover.engine.engine import Engine, LocalEngine
from ms_recover.errors import UsageError, install_extra

LOCAL = "local"


def open_engine(text: str, *, timeout: float = 60.0) -> Engine:
    """Open an engine: ``local``, or ``dask://HOST:PORT`` for the scheduler of a dask cluster, ``tls://`` with TLS only.

    Parameters
    ----------
    timeout : float
        Seconds to wait for the scheduler, and for a worker that was lost.

    Raises
    ------
    UsageError
        When the text names no engine, or the package of the engine is not installed.
    StorageError
        When the scheduler cannot be reached.
    InputError
        When it runs another version of distributed.
    """
    if text == LOCAL:
        return LocalEngine()
    if not text.startswith(("dask://", "tls://")):
        raise UsageError(f"--engine {text}: write local, dask://HOST:PORT, or tls://HOST:PORT")
    try:
        from ms_recover.engine.dask_engine import DaskEngine
    except ImportError as error:
        raise UsageError(
            f"--engine {text} takes a package that is not installed ({error.name or error}): " + install_extra("dask")
        ) from None
    return DaskEngine(text, timeout=timeout)
