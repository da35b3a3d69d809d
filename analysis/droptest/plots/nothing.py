# SPDX-License-Identifier: Apache-2.0
"""The exceptions of a figure that has nothing to show."""


class NothingToDraw(Exception):
    """The records lack the values that the figure shows; the message names the missing ones."""


class NotMeant(NothingToDraw):
    """The runs were not meant to have the values that the figure shows: the report does not mention the figure."""
