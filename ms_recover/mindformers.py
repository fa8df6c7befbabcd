"""`SliceManifests` for MindFormers: importing this module registers it, so that a YAML file can name it.

One import in the script that starts the training, ``import ms_recover.mindformers``, and one entry in the YAML::

    callbacks:
      - type: MFLossMonitor
      - type: CheckpointMonitor
      - type: SliceManifests

Where the script is not to be touched, MindFormers imports this module itself: with ``REGISTER_PATH`` (or
``run_mindformer.py --register_path``) set to the folder of this package, which ``python -m ms_recover.mindformers``
prints, and::

      - type: SliceManifests
        auto_register: mindformers.SliceManifests

MindFormers is needed by neither ms_recover nor the command line; only this module imports it.
"""

from __future__ import annotations

from ms_recover.training.slice_manifests import SliceManifests

__all__ = ["SliceManifests", "register"]


def register() -> None:
    """Enter `SliceManifests` into MindFormers' registry of callbacks; once is enough, twice does no harm.

    Source of the names: ``mindformers/tools/register/register.py``. An ImportError says that MindFormers is missing.
    """
    from mindformers.tools.register import MindFormerModuleType, MindFormerRegister

    MindFormerRegister.register_cls(SliceManifests, module_type=MindFormerModuleType.CALLBACK)


if __name__ == "__main__":
    import os

    print(os.path.dirname(os.path.abspath(__file__)))  # noqa: T201
else:
    register()
