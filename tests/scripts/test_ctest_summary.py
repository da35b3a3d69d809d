# SPDX-License-Identifier: Apache-2.0
"""scripts/ctest-summary: counts of tests whose programs run in shares, and the output of those that failed."""

import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "ctest-summary"

PASSED = """\
1: [ RUN      ] Sum.IsExact
2: [ RUN      ] Twin.AgreesWithTheDevice
1: [       OK ] Sum.IsExact (3 ms)
2: no device answers
2: [  SKIPPED ] Twin.AgreesWithTheDevice (0 ms)
2: [  PASSED  ] 0 tests.
2: [  SKIPPED ] 1 test, listed below:
2: [  SKIPPED ] Twin.AgreesWithTheDevice
1: [  PASSED  ] 12 tests.
1/2 Test #2: twins.0 ................   Passed    0.02 sec
100% tests passed, 0 tests failed out of 2
Total Test time (real) =   0.05 sec
"""

FAILED = """\
1: [ RUN      ] Sum.IsExact
1: [       OK ] Sum.IsExact (3 ms)
1: [ RUN      ] Sum.HasASign
2: [ RUN      ] Twin.EndsItsProcess
2: AddressSanitizer: heap-use-after-free
1: sum_test.cc:7: Failure
1: [  FAILED  ] Sum.HasASign (1 ms)
1: [ RUN      ] Sum.IsFinite
1: [       OK ] Sum.IsFinite (3 ms)
1: [  PASSED  ] 2 tests.
1: [  FAILED  ] 1 test, listed below:
1: [  FAILED  ] Sum.HasASign
0% tests passed, 2 tests failed out of 2
The following tests FAILED:
\t  1 - sums.0 (Failed)
\t  2 - twins.0 (Subprocess aborted)
"""


def summary(folder, log, status):
    path = folder / "ctest.log"
    path.write_text(log)
    return subprocess.run([SCRIPT, path, status], text=True, capture_output=True, check=True).stdout


def test_the_counts_are_of_tests_not_of_shares(tmp_path):
    assert summary(tmp_path, PASSED, "0").splitlines() == [
        "100% tests passed, 0 tests failed out of 2",
        "Total Test time (real) =   0.05 sec",
        "tests: 12 passed, 0 failed, 1 skipped",
    ]


def test_the_output_of_a_failed_test_and_of_one_that_ended_its_process_is_shown(tmp_path):
    shown = summary(tmp_path, FAILED, "8").splitlines()
    assert "1: sum_test.cc:7: Failure" in shown
    assert "2: AddressSanitizer: heap-use-after-free" in shown
    assert not [line for line in shown if "IsExact" in line or "IsFinite" in line]
    assert "\t  2 - twins.0 (Subprocess aborted)" in shown
    assert shown[-1] == "tests: 2 passed, 2 failed, 0 skipped"


def test_what_a_program_wrote_after_its_tests_is_shown_where_it_failed(tmp_path):
    leak = "1: ERROR: LeakSanitizer: detected memory leaks"
    log = FAILED.replace(
        "0% tests",
        leak + "\n3: CMake Error: no program\n4: fine\n4/4 Test #4: install.Sum ....   Passed    1 sec\n0% tests",
    )
    shown = summary(tmp_path, log, "8").splitlines()
    assert leak in shown
    assert "3: CMake Error: no program" in shown
    assert "4: fine" not in shown
