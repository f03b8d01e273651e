"""``millstream doctor``: check a running cluster, and suggest fixes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from millstream.cli.support import declare
from millstream.cli.support.options import Bootstrap, Format, OutputFormat, Timeout
from millstream.cli.support.output import print_json
from millstream.client.connection import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_S

app = declare.Application()


@app.command()
def doctor(
    strict: Annotated[
        bool,
        declare.Option("--strict", help="Exit with 1 for warnings too, not only for failures."),
    ] = False,
    format: OutputFormat = Format.table,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Check listeners, replicas, topic settings, transactions and disks of a cluster.

    Also checks this machine if a broker runs on it. Exit code 1 if a check fails.
    """
    from millstream.cli.doctor.checks import (
        CHECKS,
        Finding,
        Level,
        check_controller,
        check_listeners,
        controller_named,
        view_cluster,
    )
    from millstream.cli.doctor.machine import check_machine
    from millstream.client.admin.client import Admin
    from millstream.client.errors import ClientError

    findings: list[Finding] = []
    with Admin(bootstrap, timeout_s=timeout) as admin:
        findings += check_listeners(admin)
        controller = None
        if all(finding.level is Level.ok for finding in findings):
            controller = controller_named(admin)
            findings += check_controller(admin.connection, controller)
        if controller is not None:
            view = view_cluster(admin)
            for check in (*CHECKS, check_machine):
                try:
                    findings += check(view)
                except ClientError as error:
                    name = check.__name__.removeprefix("check_")
                    findings.append(
                        Finding(Level.fail, name, f"check failed: {error.message}", error.hint)
                    )
    if format is Format.json:
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in sorted(
            findings, key=lambda finding: (Level.fail, Level.warn, Level.ok).index(finding.level)
        ):
            print(
                f"{finding.level:<5} {finding.message}"
                + (f"\n      -> {finding.advice}" if finding.advice else "")
            )
    bad = {Level.fail, Level.warn} if strict else {Level.fail}
    if any(finding.level in bad for finding in findings):
        raise declare.Exit(1)
