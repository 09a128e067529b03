"""The program `schedctl`: run the command, or name the extra that isn't installed."""

import gc
import os
import signal
import sys

NEEDS = "schedctl needs its extra: pip install 'schedd[cli]' (missing: {module})\n"
INTERRUPTED = 130
OURS = frozenset({"schedctl", "schedclient", "schedkit", "schedproto", "schedd"})


def main() -> int:
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))  # during imports
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # stderr is for the three lines of an error
    gc.disable()  # imports leave no garbage
    try:
        from schedctl import app

        gc.enable()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return app.run(sys.argv[1:])
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in OURS:
            raise
        sys.stderr.write(NEEDS.format(module=error.name))
        return 2


if __name__ == "__main__":
    sys.exit(main())
