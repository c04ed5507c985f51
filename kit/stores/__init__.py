"""Where runs live beyond this machine: folders (Drive, network volumes), the Hugging Face Hub, S3 and its like.

`open_store(url)` gives a `Store`; `start_sync` copies a run there in the background, verified; `pull` brings one back.
"""

from kit.stores.base import MissingFile, Store, StoreError
from kit.stores.lease import LeaseHeld
from kit.stores.pull import holds, list_runs, pull
from kit.stores.sync import SyncHandle, start_sync
from kit.stores.urls import open_store

__all__ = ["LeaseHeld", "MissingFile", "Store", "StoreError", "SyncHandle",
           "holds", "list_runs", "open_store", "pull", "start_sync"]  # fmt: skip
