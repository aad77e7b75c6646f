"""A key that the trainer was started with is not for other processes of its user to read."""

import os
import subprocess
import sys

import pytest

HIDES = """
import os, subprocess, sys
from agentlightning.runners.check import new_launcher
from pathlib import Path
key = sys.stdin.read()
before = Path("/proc/self/environ").read_bytes()
new_launcher(keys=[key, "short", "absent-" + key])
seen = subprocess.run(["cat", f"/proc/{os.getpid()}/environ"], capture_output=True, check=True).stdout
assert key.encode() in before and seen == before.replace(key.encode(), b"*" * len(key)), seen
assert os.environ["ONE"] == key and os.environ["TWO"] == f"Bearer {key}, {key}" and os.environ["THREE"] == "short"
child = subprocess.run(["env"], capture_output=True, check=True, text=True).stdout
assert f"ONE={key}" in child and f"TWO=Bearer {key}, {key}" in child
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows it")
def test_a_key_is_hidden_from_other_processes_and_kept_for_its_own():
    key = "sk-0123456789abcdef"
    env = {**os.environ, "ONE": key, "TWO": f"Bearer {key}, {key}", "THREE": "short"}
    subprocess.run([sys.executable, "-c", HIDES], input=key, env=env, text=True, check=True)
