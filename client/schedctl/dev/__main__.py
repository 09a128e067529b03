"""`python -m schedctl.dev up …`, the same as `schedctl dev up …`."""

from schedctl.dev.commands import group

if __name__ == "__main__":
    group(prog_name="schedctl dev")
