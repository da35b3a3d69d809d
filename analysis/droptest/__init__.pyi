# SPDX-License-Identifier: Apache-2.0
# The names of __init__.py for type checkers, which cannot see names that are loaded at their first use.
from droptest import plots as plots
from droptest.commands import fates as fates
from droptest.commands import run as run
from droptest.commands import sweep as sweep
from droptest.comparison import Comparison as Comparison
from droptest.comparison import compare as compare
from droptest.files import MalformedRecord as MalformedRecord
from droptest.files import MissingRecord as MissingRecord
from droptest.files import RecordError as RecordError
from droptest.library import LibraryError as LibraryError
from droptest.library import NetworkError as NetworkError
from droptest.network import CollectiveGroup as CollectiveGroup
from droptest.network import Flow as Flow
from droptest.network import Network as Network
from droptest.network import Statistics as Statistics
from droptest.program import CommandError as CommandError
from droptest.program import binary as binary
from droptest.records import Records as Records
from droptest.records import best_over as best_over
from droptest.records import experiments_in as experiments_in
from droptest.records import load as load
from droptest.records import load_all as load_all
from droptest.statistics import Interval as Interval
from droptest.statistics import mean_interval as mean_interval
from droptest.statistics import paired_difference as paired_difference
from droptest.summary import Group as Group
from droptest.summary import groups as groups
from droptest.summary import points as points
from droptest.summary import summary_table as summary_table
from droptest.watching import follow as follow
from droptest.watching import watch as watch

__version__: str
