# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for Slurm's programs: they note their arguments, and say what a test wants them to say."""

from cli_harness import CLEAN_ENVIRONMENT

SCRIPT = """#!/bin/sh
echo "$@" >> '{folder}/{name}.calls'
n=$(wc -l < '{folder}/{name}.calls')
if [ -e '{folder}/{name}.says.'$n ]; then . '{folder}/{name}.says.'$n; else . '{folder}/{name}.says'; fi
"""
CONFIGURATION = "echo 'MaxArraySize            = {size}'"


class SlurmPrograms:
    """sbatch gives job ids 101, 102 and so on; squeue knows no job; scontrol has arrays of at most 1000 tasks."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        self.say("sbatch", "echo $((100 + n))")
        self.say("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
        self.say("scontrol", CONFIGURATION.format(size=1001))
        self.environment = {"PATH": f"{folder}:{CLEAN_ENVIRONMENT['PATH']}"}

    def say(self, name, shell, call=None):
        """From now on, or at one call alone (from 1), the program does this."""
        program = self.folder / name
        if not program.exists():
            program.write_text(SCRIPT.format(folder=self.folder, name=name))
            program.chmod(0o755)
        suffix = "" if call is None else f".{call}"
        (self.folder / f"{name}.says{suffix}").write_text(shell + "\n")

    def calls(self, name):
        """The arguments of each call."""
        file = self.folder / f"{name}.calls"
        return file.read_text().splitlines() if file.exists() else []
