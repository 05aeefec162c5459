"""How a command of the tools ends, whatever its output or its user does meanwhile."""

import os
import signal
import sys


def run(name, main):
    """Ends the process with what main() returns. main() says itself what is wrong with the files
    that it opens: an OSError that it raises is of stdout."""
    if sys.stdout:
        # The locale's encoding may lack a name's letters.
        sys.stdout = open(1, "w", encoding=sys.stdout.encoding, errors="replace", closefd=False)
    try:
        status = main()
        if sys.stdout:
            sys.stdout.flush()
    except KeyboardInterrupt:  # as a program that knows nothing of the signal
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # there the reader has seen enough
            print(f"{name}: stdout: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what is still to be written
        status = 1
    sys.exit(status)
