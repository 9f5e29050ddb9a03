"""The command line. Each command imports what it needs when it runs."""

from __future__ import annotations

import click

from sgguard._version import __version__
from sgguard.cli_policy import check, schema


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sgguard")
def main() -> None:
    """A runtime guard for the enumerated values that SGLang takes."""


@main.command()
def demo() -> None:
    """Drive SGLang's own classes with right and wrong values, and show what happens.

    Takes about ten seconds, most of it SGLang's import. Where SGLang is not installed, a
    stand-in is used and labelled as such.
    """
    from sgguard.demo import run

    run()


main.add_command(check)
main.add_command(schema)

if __name__ == "__main__":
    main()
