"""The commands about policies: ``sgguard check`` and ``sgguard schema``."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

from sgguard.errors import PolicyError

if TYPE_CHECKING:
    from rich.table import Table

    from sgguard.check import Verified
    from sgguard.policy_file import Source

OK, WRONG, CANNOT = 0, 1, 2
"""Exit codes: nothing wrong; the policy is wrong; it could not be checked."""


@click.command()
@click.argument("policy", required=False, metavar="[POLICY]")
@click.option(
    "--sglang",
    "sglang_path",
    metavar="PATH",
    help="Check against the SGLang in this directory (an unpacked wheel, say).",
)
@click.option("--no-sglang", is_flag=True, help="Check the file alone; import nothing of SGLang.")
@click.option(
    "--explain",
    metavar="POINT=VALUE",
    help="Show step by step what would happen to one value, such as srt.cp_strategy=ZigZag.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def check(
    policy: str | None,
    sglang_path: str | None,
    no_sglang: bool,
    explain: str | None,
    as_json: bool,
) -> None:
    """Check a policy file before it acts.

    POLICY is a file, or inline:TEXT. With --explain it may be left out: then nothing is
    repaired, as without a policy.

    Exit code 0: nothing wrong. 1: the policy is wrong; every error is printed with its place.
    2: it could not be checked (no such file, no SGLang, wrong usage).
    """
    if policy is None and explain is None:
        raise click.UsageError("give a policy file (or --explain POINT=VALUE)")
    if explain is not None and no_sglang:
        raise click.UsageError("--explain asks SGLang, so it cannot be used with --no-sglang")
    output = _Output(as_json)
    try:
        source = _read(policy, output)
        if sglang_path is not None:
            from sgguard.check import use_sglang_at

            use_sglang_at(sglang_path)
    except PolicyError as error:
        output.fail(error, CANNOT)
    verified: list[Verified] = []
    if not no_sglang:
        verified = _verify(output)
    try:
        if verified:
            from sgguard.check import contradictions

            contradictions(source, verified)
    except PolicyError as error:
        output.fail(error, WRONG)
    if explain is not None:
        try:
            output.explain(source, explain, verified)
        except PolicyError as error:
            output.fail(error, CANNOT)
        return
    output.effects(source, verified, no_sglang)


@click.command()
def schema() -> None:
    """Print the JSON Schema of a policy file, for editors.

    Save it, and name it in the first line of a policy:
    # yaml-language-server: $schema=policy.schema.json
    """
    from sgguard.schema import render

    click.echo(render(), nl=False)


def _read(policy: str | None, output: _Output) -> Source:
    from sgguard._text import read_text
    from sgguard.policy_file import parse_policy

    if policy is None:
        return parse_policy("version: 1", "no policy")
    if policy.startswith("inline:"):
        text, name = policy.removeprefix("inline:"), "inline"
    else:
        text, name = read_text(policy), policy
    try:
        return parse_policy(text, name)
    except PolicyError as error:
        output.fail(error, WRONG)


def _verify(output: _Output) -> list[Verified]:
    from sgguard.check import verify
    from sgguard.compat.process import sglang_version

    output.say("Asking SGLang what it accepts (its import takes about ten seconds) ...")
    # What SGLang prints while it is imported is not this command's output.
    keep = os.dup(1)
    try:
        os.dup2(2, 1)
        found = verify()
    finally:
        sys.stdout.flush()
        os.dup2(keep, 1)
        os.close(keep)
    if not any(entry.guards for entry in found):
        reasons = dict.fromkeys(entry.why_not for entry in found)
        what = "SGLang is not installed" if sglang_version() is None else "; ".join(reasons)
        output.fail(
            PolicyError(f"{what}. To check the file alone: sgguard check --no-sglang"), CANNOT
        )
    return found


class _Output:
    """Prints for a person, or as one JSON object."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    def say(self, text: str) -> None:
        if not self.as_json:
            click.echo(text, err=True)

    def fail(self, error: PolicyError, code: int) -> NoReturn:
        if self.as_json:
            from sgguard.check import problems_of

            self._json({"ok": False, "problems": problems_of(error)})
        else:
            click.echo(str(error), err=True)
        raise SystemExit(code)

    @staticmethod
    def _json(data: dict[str, Any]) -> None:
        click.echo(json.dumps(data, indent=2))

    def explain(self, source: Source, question: str, verified: list[Verified]) -> None:
        from sgguard.check import explain

        steps = explain(source.policy, question, verified)
        if self.as_json:
            self._json({"ok": True, "problems": [], "steps": [vars(step) for step in steps]})
            return
        for number, step in enumerate(steps, 1):
            answer = "accepted" if step.accepted else "refused"
            if not step.what.startswith("refused"):
                click.echo(f"{number}. {step.what}: {step.value} -> SGLang: {answer}")
            else:
                click.echo(f"{number}. {step.what}")

    def effects(self, source: Source, verified: list[Verified], no_sglang: bool) -> None:
        from sgguard.catalogue import POINTS
        from sgguard.check import Verified, effect
        from sgguard.compat.process import sglang_version

        entries = verified or [Verified(point, (), "not asked") for point in POINTS]
        rows = [row for entry in entries for row in effect(source.policy, entry)]
        version = None if no_sglang else sglang_version()
        if self.as_json:
            self._json(
                {
                    "ok": True,
                    "problems": [],
                    "fingerprint": source.policy.fingerprint,
                    "sglang": version,
                    "points": rows,
                }
            )
            return
        from rich.console import Console

        Console().print(_table(rows))
        against = f"SGLang {version}" if version else "the file alone; SGLang was not asked"
        click.echo(f"OK: {source.name}, policy {source.policy.fingerprint}, against {against}.")


def _table(rows: list[dict[str, Any]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(show_lines=True)
    table.add_column("point", no_wrap=True)
    for heading in ("action", "aliases, fallback", "SGLang accepts"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        words = [f"{alias} -> {value}" for alias, value in row["aliases"].items()]
        if row["fallback"] is not None:
            words.append(f"else {row['fallback']}")
        words += [f"not: {step}" for step in row["steps_off"]]
        action = row["action"] + (f"\nwhen {row['when']}" if row["when"] else "")
        accepted = ", ".join(row["accepted"]) if row["verified"] else f"({row['why_not']})"
        table.add_row(*(Text(cell) for cell in (row["point"], action, "\n".join(words), accepted)))
    return table
