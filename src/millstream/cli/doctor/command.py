"""``millstream doctor``: look at a running cluster, say what is wrong with it and what to do."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from millstream.cli.support.options import Bootstrap, Format, OutputFormat, Timeout
from millstream.cli.support.output import print_json
from millstream.client.connection import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_S

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def doctor(
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 for warnings too, not for failures alone.")
    ] = False,
    format: OutputFormat = Format.table,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Check replicas, listeners, settings of topics, transactions, disks, and the machine where brokers run on it.

    Exit code 1 if something has failed.
    """
    from millstream.cli.doctor.checks import (
        CHECKS,
        Finding,
        Level,
        check_controller,
        check_listeners,
        controller_named,
        look,
    )
    from millstream.cli.doctor.machine import check_machine
    from millstream.client.admin.client import Admin
    from millstream.client.errors import ClientError

    found: list[Finding] = []
    with Admin(bootstrap, timeout_s=timeout) as admin:
        found += check_listeners(admin)
        controller = None
        if all(one.level is Level.ok for one in found):
            controller = controller_named(admin)
            found += check_controller(admin.connection, controller)
        if controller is not None:
            seen = look(admin)
            for check in (*CHECKS, check_machine):
                try:
                    found += check(seen)
                except ClientError as error:
                    name = check.__name__.removeprefix("check_")
                    found.append(
                        Finding(Level.fail, name, f"could not be checked: {error.message}", error.hint)
                    )
    if format is Format.json:
        print_json([asdict(one) for one in found])
    else:
        for one in sorted(found, key=lambda one: (Level.fail, Level.warn, Level.ok).index(one.level)):
            print(f"{one.level:<5} {one.message}" + (f"\n      -> {one.advice}" if one.advice else ""))
    bad = {Level.fail, Level.warn} if strict else {Level.fail}
    if any(one.level in bad for one in found):
        raise typer.Exit(1)
