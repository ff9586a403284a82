"""The one exception a user's mistake raises."""


class GradDivError(ValueError):
    """A mistake in the input, told in one sentence: the thing, the value found and what was expected.

    The command line prints it without a traceback and exits with 2.
    """
