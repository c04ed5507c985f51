"""Many runs and several machines: batches, searches by Optuna, notebooks by papermill, clusters by Ray."""
