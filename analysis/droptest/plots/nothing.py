# SPDX-License-Identifier: Apache-2.0
"""What a figure raises where there is nothing for it to show."""


class NothingToDraw(Exception):
    """The records do not have what the figure shows; the message says what is missing."""


class NotMeant(NothingToDraw):
    """The runs were not meant to have what the figure shows: not worth a word in the report."""
