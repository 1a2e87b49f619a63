"""docs/getting-started.md as a reader follows it: every `sh` block is run, in order, on one cluster."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from klamm.testing.cluster import KlammCluster

PAGE = Path(__file__).parents[2] / "docs" / "getting-started.md"
ADDRESSES = "127.0.0.1:9092,127.0.0.1:9093,127.0.0.1:9094"
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.M | re.S)


def test_every_command_of_the_page(klamm_cluster: KlammCluster, tmp_path: Path) -> None:
    blocks = BLOCK.findall(PAGE.read_text())
    script = "set -e -o pipefail\n" + "\n".join(blocks).replace(ADDRESSES, klamm_cluster.bootstrap)
    shell = f'klamm() {{ "{sys.executable}" -m klamm "$@"; }}\n' + re.sub(
        r"^(?=\S)(?!set )(.*)$", r"echo '>>>' ; \1", script, flags=re.M
    )
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    environment.pop("KLAMM_BOOTSTRAP_SERVER", None)
    ran = subprocess.run(
        ["bash", "-c", shell], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert ran.returncode == 0, f"{ran.stdout[-2000:]}\n{ran.stderr}"
    assert ran.stdout.count(">>>") == sum(len(block.splitlines()) for block in blocks)
    for said in ("created topic orders", "group billing is Empty with 0 members", "reads from there", "DEBUG"):
        assert said in ran.stdout
    assert (tmp_path / "even.json").exists() or "nothing to do" in ran.stdout
