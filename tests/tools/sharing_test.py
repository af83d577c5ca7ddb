#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""hbm-run and hbm-top as their users run them, on a simulated device.

    sharing_test.py HBM_RUN HBM_TOP
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

RUN, TOP = sys.argv[1:3]
DEVICE = "--device=sim:80GiB,shared=tools"
ECHO = ["sh", "-c", "echo $XLA_PYTHON_CLIENT_MEM_FRACTION/$XLA_CLIENT_MEM_FRACTION"]


class SharingTools(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory(dir="/dev/shm")
        self.env = dict(os.environ, HBMALLOC_SHARING_DIR=self.dir.name)
        self.children = []

    def tearDown(self):
        for child in self.children:
            child.kill()
            child.wait()
            child.stdout.close()
            child.stderr.close()
        self.dir.cleanup()

    def run_tool(self, *command, **extra):
        return subprocess.run(command, env=dict(self.env, **extra), capture_output=True, text=True, timeout=60)

    def start(self, *command):
        child = subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.children.append(child)
        return child

    def top(self):
        result = self.run_tool(TOP, "--once", "--format=json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)["devices"]

    def wait_for(self, condition):
        deadline = time.time() + 30
        while not condition():
            self.assertLess(time.time(), deadline, "nothing happened")
            time.sleep(0.01)

    def running(self):
        return [p for d in self.top() for p in d["processes"] if p["alive"] and p["held"]]

    def test_the_command_is_told_its_fraction(self):
        result = self.run_tool(RUN, "--share=0.25", DEVICE, "--", *ECHO, XLA_CLIENT_MEM_FRACTION="0.9")
        # 0.25 of what 1 GiB in reserve leaves: 19.75 of 80.
        self.assertEqual(result.stdout, "0.2468/\n", result.stderr)

    def test_exit_codes_and_signals_are_the_commands(self):
        self.assertEqual(self.run_tool(RUN, DEVICE, "--", "sh", "-c", "exit 7").returncode, 7)
        self.assertEqual(self.run_tool(RUN, DEVICE, "--", "sh", "-c", "kill -TERM $$").returncode, -signal.SIGTERM)
        self.assertEqual(self.run_tool(RUN, DEVICE, "--", "no-such-command-here").returncode, 127)
        self.assertEqual(self.run_tool(RUN, DEVICE, "--", "/etc/passwd").returncode, 126)
        self.assertEqual(self.run_tool(RUN, "--share=2", "--", "true").returncode, 125)
        self.assertEqual(self.run_tool(RUN).returncode, 125)
        self.assertEqual(self.run_tool(RUN, "--device=nonsense", "--", "true").returncode, 125)

    def test_three_run_side_by_side_and_the_next_one_waits(self):
        first = [self.start(RUN, "--share=0.3", DEVICE, "--", "sleep", "100") for _ in range(3)]
        self.wait_for(lambda: len(self.running()) == 3)
        state = self.top()[0]
        self.assertEqual(sorted(p["pid"] for p in state["processes"]), sorted(c.pid for c in first))
        self.assertLessEqual(state["held"], state["capacity"])
        self.assertEqual({p["name"] for p in state["processes"]}, {"sleep"})
        late = self.run_tool(RUN, "--share=0.3", "--wait=100ms", DEVICE, "--", "true")
        self.assertEqual(late.returncode, 124)
        self.assertIn("process %d (sleep" % first[0].pid, late.stderr)
        waiting = self.start(RUN, "--share=0.3", "--wait=30s", DEVICE, "--", "echo", "had its turn")
        time.sleep(0.2)
        self.assertIsNone(waiting.poll())
        first[0].send_signal(signal.SIGKILL)
        out, err = waiting.communicate(timeout=30)
        self.assertEqual(out, "had its turn\n", err)

    def test_a_command_that_leaves_a_child_behind_gives_its_share_back(self):
        self.run_tool(RUN, "--share=1", DEVICE, "--", "sh", "-c", "sleep 100 >/dev/null 2>&1 & echo $!")
        result = self.run_tool(RUN, "--share=1", "--wait=5s", DEVICE, "--", "true")
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_gc_removes_what_nobody_uses_and_verify_is_content(self):
        self.assertEqual(self.run_tool(RUN, DEVICE, "--", "true").returncode, 0)
        running = self.start(RUN, "--device=sim:8GiB,shared=other", "--", "sleep", "100")
        self.wait_for(lambda: len(self.running()) == 1)
        result = self.run_tool(TOP, "--gc")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([d["uuid"] for d in self.top()], ["sim-other"])
        self.assertEqual(self.running()[0]["pid"], running.pid)
        self.assertEqual(self.run_tool(TOP, "--verify").returncode, 0)

    def test_verify_finds_a_process_over_its_limit(self):
        child = self.start(RUN, "--share=0.25", DEVICE, "--", "sleep", "100")
        self.wait_for(lambda: len(self.running()) == 1)
        path = self.top()[0]["file"]
        with open(path, "r+b") as file:  # a limit of one byte, in its slot
            data = file.read()
            held = self.running()[0]["held"].to_bytes(8, "little")
            limit = data.index(held, data.index(held, 4096) + 8)
            file.seek(limit)
            file.write((1).to_bytes(8, "little"))
        result = self.run_tool(TOP, "--verify")
        self.assertEqual(result.returncode, 3)
        self.assertIn("process %d" % child.pid, result.stderr)

    def test_usage(self):
        for tool in (RUN, TOP):
            self.assertIn("usage", self.run_tool(tool, "--help").stdout)
            self.assertEqual(self.run_tool(tool, "--version").returncode, 0)
        self.assertEqual(self.run_tool(TOP, "--nonsense").returncode, 1)
        self.assertEqual(self.run_tool(TOP, "--interval=0").returncode, 1)
        self.assertIn("no device is shared", self.run_tool(TOP).stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
