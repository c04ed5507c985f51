"""Remote storage for runs: folders (Google Drive, network volumes), the Hugging Face Hub, S3 and other object stores.

`open_store(url)` returns a `Store`; `start_sync` copies a run to a store in the background and verifies the copy;
`pull` fetches a run from a store.
"""

from kit.stores.base import MissingFile, Store, StoreError
from kit.stores.lease import LeaseHeld
from kit.stores.pull import check_new, holds, list_runs, pull
from kit.stores.sync import SyncHandle, start_sync
from kit.stores.urls import absolute, open_store

__all__ = ["LeaseHeld", "MissingFile", "Store", "StoreError", "SyncHandle",
           "absolute", "check_new", "holds", "list_runs", "open_store", "pull", "start_sync"]  # fmt: skip
