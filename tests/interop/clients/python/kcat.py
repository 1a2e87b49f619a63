"""The programs of the client matrix with kcat, which has neither administration nor transactions.

clients/README.md has the contract. KCAT_ROOT is the directory into which the packages were unpacked.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(os.environ["KCAT_ROOT"])
(LIBRARIES,) = {file.parent for file in ROOT.glob("usr/lib/*/librdkafka.so.1")}
KCAT = [str(ROOT / "usr" / "bin" / "kcat")]
ENVIRONMENT = os.environ | {"LD_LIBRARY_PATH": str(LIBRARIES)}


def produce(bootstrap: str, topic: str, compression: str, first: str, count: str) -> None:
    lines = "".join(f"k{number}:v{number}\n" for number in range(int(first), int(first) + int(count)))
    options = ["-P", "-b", bootstrap, "-t", topic, "-z", compression, "-K:", "-X", "enable.idempotence=true"]
    subprocess.run(KCAT + options, input=lines.encode(), check=True, env=ENVIRONMENT)


def consume(bootstrap: str, topic: str, group: str, isolation: str) -> None:
    settings = {
        "auto.offset.reset": "earliest",
        "session.timeout.ms": "6000",
        "heartbeat.interval.ms": "500",
        "auto.commit.interval.ms": "100",
        "isolation.level": isolation,
    }
    options = [word for key, value in settings.items() for word in ("-X", f"{key}={value}")]
    shown = "record %p %o %k %s -\\n"
    command = [*KCAT, "-b", bootstrap, "-u", *options, "-f", shown, "-G", group, topic]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as member:
        signal.signal(signal.SIGTERM, lambda *_: member.terminate())
        assert member.stderr is not None
        for line in member.stderr:
            if "assigned:" in line:
                places = re.findall(r"\[(\d+)\]", line.partition("assigned:")[2])
                print("assigned", ",".join(sorted(places)), flush=True)
            elif "revoked:" not in line:
                print(line, end="", file=sys.stderr)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
