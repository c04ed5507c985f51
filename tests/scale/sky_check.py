"""Check a task with SkyPilot: parse it and choose a machine from the catalogue. Runs in SkyPilot's Python.

    python sky_check.py TASK.yaml CLOUD...      # with the catalogue in $HOME/.sky/catalogs/v8

Prints cloud, instance type and use_spot. SkyPilot sends no request to the clouds: CLOUD... are taken as enabled.
"""

import sys
from pathlib import Path
from unittest import mock

import sky
import yaml
from sky import clouds, optimizer
from sky.utils import registry

wanted = yaml.safe_load(Path(sys.argv[1]).read_text())
given = [(name, "given") for name in wanted.get("secrets", {})]
task = sky.Task.from_yaml_config(wanted, secrets_overrides=given)
opened = [registry.CLOUD_REGISTRY.from_str(name) for name in sys.argv[2:]]
for resources in task.resources:
    if resources.cloud is not None:
        resources.cloud.check_features_are_supported(resources, task.get_required_cloud_features())
with sky.Dag() as dag:
    dag.add(task)
with mock.patch("sky.check.get_cached_enabled_clouds_or_refresh", return_value=opened):
    task.validate()
    optimizer.Optimizer.optimize(dag, quiet=True)
assert isinstance(task.best_resources.cloud, clouds.Cloud)
print(task.best_resources.cloud, task.best_resources.instance_type, task.best_resources.use_spot)
