"""Many runs and several machines: batches, Optuna searches, papermill notebooks, Ray clusters, SkyPilot tasks."""
