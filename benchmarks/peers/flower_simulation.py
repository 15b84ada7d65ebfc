"""Flower's simulation of the app, one client per core: `python -m benchmarks.peers.flower_simulation RAY_FOLDER`."""

from __future__ import annotations

import json
import os
import sys

from flwr.simulation import run_simulation

from benchmarks.peers.flower_app import FLAGS, client, server

run_simulation(
    server_app=server,
    client_app=client,
    num_supernodes=json.loads(os.environ[FLAGS])["clients"],
    backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"_temp_dir": sys.argv[1]}},
)
