"""The command line of the race, and the order of its measures and contestants (the brokers)."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

from benchmarks.racing import lifecycle, loads, plot, processes, report
from benchmarks.racing.contestants import APACHE, Contestant, ContestantFactory, rotated
from benchmarks.racing.measures import Figures, RunningMeasures, Scale, means
from benchmarks.racing.results import Results, Sample, about_this_machine
from integration_tests import maven
from integration_tests.apache import ApacheZooKeeper
from integration_tests.wire_client import ConnectionClosed
from unit_tests.patience import WaitFailed

Lone = Callable[[ContestantFactory, Sequence[str], Scale], Iterator[tuple[str, Figures]]]
LONE: Final[dict[str, Lone]] = {"start": lifecycle.start, "partitions": lifecycle.partitions}
STANDING: Final = tuple(RunningMeasures(Scale()).runs)
FAILURES: Final = (WaitFailed, ConnectionClosed, OSError, RuntimeError)
DISK_BYTES_A_ROUND: Final = 7 * 10**9


class Progress:
    """Prints the progress of the race on standard error, with an estimate of the remaining time
    from earlier rounds of the same measures."""

    def __init__(self, measures: Sequence[str], rounds: int) -> None:
        self._left = dict.fromkeys(measures, rounds)
        self._seconds: dict[str, float] = {}
        self._started = time.monotonic()

    def say(self, text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._started), 60)
        print(f"race {minutes:02d}:{seconds:02d} {text}", file=sys.stderr, flush=True)

    def done(self, measure: str, seconds: float) -> None:
        """Note that one round of `measure` has taken this many seconds, and print the progress."""
        self._left[measure] -= 1
        self._seconds[measure] = seconds
        known = sum(self._seconds.values()) / len(self._seconds)
        rest = sum(n * self._seconds.get(name, known) for name, n in self._left.items())
        self.say(f"{measure}: {seconds:.0f} s; about {rest / 60:.0f} min to go")


class Race:
    """One race: several rounds of the `chosen` measures. Owns the results and the file that stores
    them."""

    def __init__(
        self, field: ContestantFactory, scale: Scale, chosen: Sequence[str], output: Path
    ) -> None:
        self._field = field
        self._scale = scale
        self._chosen = chosen
        self._output = output
        self.results = Results(about_this_machine(), field.names)

    def run(self, rounds: int, minutes: float) -> None:
        """Run all rounds. The measures of starting and stopping, which take the most time, come
        last. Once `minutes` are over, no further round of them begins."""
        deadline = time.monotonic() + minutes * 60
        self._progress = Progress(self._chosen, rounds)
        with contextlib.ExitStack() as stack:
            standing: list[Contestant] = []
            measures = RunningMeasures(self._scale)
            if any(name in measures.runs for name in self._chosen):
                standing = [self._entered(stack, name) for name in self._field.names]
                for contestant in standing:
                    self._warm_up(contestant, measures)
            for number in range(rounds):
                self._round(number, standing, measures)
        for name in (name for name in self._chosen if name in LONE):
            for number in range(rounds):
                begun = time.monotonic()
                self._lone_round(name, number)
                if time.monotonic() + (time.monotonic() - begun) > deadline:
                    self._progress.say(
                        f"{name}: only {number + 1} rounds, because the time limit is reached"
                    )
                    break

    def _entered(self, stack: contextlib.ExitStack, name: str) -> Contestant:
        contestant = stack.enter_context(contextlib.closing(self._field.contestant(name)))
        contestant.start()
        return contestant

    def _warm_up(self, contestant: Contestant, measures: RunningMeasures) -> None:
        """Run rounds of the chosen measures until the contestant's figures no longer change. The
        report shows these rounds separately. A contestant without a just-in-time compiler gets a
        quarter of the time."""
        share = 1.0 if contestant.name == APACHE else 0.25
        rounds = measures.warm_up(contestant, self._chosen, self._scale.warm_up_seconds_max * share)
        for number, figures in enumerate(rounds):
            self.results.warm_up += [
                Sample(name, number, contestant.name, found) for name, found in figures.items()
            ]
            told = ", ".join(f"{key} {mean:.4g}" for key, mean in means(figures).items())
            self._progress.say(f"{contestant.name} warms up: round {number + 1}, means: {told}")

    def _round(
        self, number: int, standing: Sequence[Contestant], measures: RunningMeasures
    ) -> None:
        by_name = {contestant.name: contestant for contestant in standing}
        order = rotated(list(by_name), number) if by_name else []
        for name in (name for name in self._chosen if name in measures.runs):
            found = ((who, measures.run(name, by_name[who])) for who in order)
            self._record(name, number, found)
        for contestant in standing:
            measures.end_round(contestant)

    def _lone_round(self, name: str, number: int) -> None:
        order = rotated([n for n in self._field.names if n not in self._field.commands], number)
        self._record(name, number, LONE[name](self._field, order, self._scale))

    def _record(self, name: str, number: int, found: Iterable[tuple[str, Figures]]) -> None:
        """Run one round of the measure `name`, and save its figures for each contestant. If the
        measure fails, the failure is printed, the results lack the figures, and the race
        continues."""
        begun = time.monotonic()
        try:
            for who, figures in found:
                self.results.samples.append(Sample(name, number, who, figures))
                self.results.save(self._output / "race.json")
        except FAILURES as error:
            self._progress.say(f"{name}, round {number + 1}, failed and is incomplete: {error}")
        self._progress.done(name, time.monotonic() - begun)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks/race.py",
        description="Compare pybroker with Apache Kafka and print a table.",
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="the number of rounds of all measures (default: 5)"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=35.0,
        help="minutes after which no round of the slowest measures begins (default: 35)",
    )
    parser.add_argument(
        "--only",
        default="",
        metavar="MEASURE,...",
        help="run only the measures whose names begin with one of these words:"
        f" {', '.join((*STANDING, *LONE))}",
    )
    parser.add_argument(
        "--quick", action="store_true", help="use small loads, to test that everything works"
    )
    parser.add_argument(
        "--contestant",
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="measure a further broker too, which COMMAND starts; {port} and {folder} in COMMAND"
        " are replaced by its port and its folder",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("build/race"),
        metavar="FOLDER",
        help="the folder for race.json and race.txt (default: build/race)",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        metavar="FOLDER",
        help="the folder for the data of the brokers (default: the folder for temporary files)",
    )
    _add_report_options(parser)
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("--rounds must be 1 or more")
    return options


def _add_report_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--results", action="store_true", help="put the medians into benchmarks/results/race.json"
    )
    parser.add_argument(
        "--report", type=Path, metavar="FILE.json", help="print the table of an earlier race"
    )
    parser.add_argument(
        "--rst", action="store_true", help="with --report: print the table in reStructuredText"
    )
    parser.add_argument(
        "--into", type=Path, metavar="FILE.rst", help="with --report: replace a document's table"
    )


def chosen_measures(only: str) -> list[str]:
    """Return the measures to run, in their order: those whose name begins with a word in `only`, a
    list separated by commas; all if it is empty."""
    known = (*STANDING, *LONE)
    wanted = [word for word in only.split(",") if word]
    unknown = [word for word in wanted if not any(name.startswith(word) for name in known)]
    if unknown:
        raise SystemExit(
            f"race: --only: no measure begins with {', '.join(unknown)}; --help lists the measures"
        )
    return [name for name in known if not wanted or name.startswith(tuple(wanted))]


def further_contestants(texts: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equals, command = text.partition("=")
        if not (name and equals and command):
            raise SystemExit(f"race: --contestant is {text!r}, expected NAME=COMMAND")
        found[name] = command
    return found


def check_machine(folder: Path, rounds: int) -> None:
    """Check that this machine has Java, Kafka's jars and enough space in `folder` for the race. End
    the program with the reason if not."""
    try:
        maven.java()
        maven.class_path()
    except maven.MavenUnavailable as error:
        raise SystemExit(f"race: Apache Kafka's jars cannot be fetched: {error}") from error
    free, needed = shutil.disk_usage(folder).free, (rounds + 1) * DISK_BYTES_A_ROUND
    if free < needed:
        raise SystemExit(
            f"race: {folder} has {free / 1e9:.0f} GB free, {needed / 1e9:.0f} GB are needed; "
            "choose another --folder, or fewer --rounds"
        )


def end_by_signal(number: int, frame: FrameType | None) -> None:
    """Handle SIGTERM and SIGHUP like Ctrl-C, so that the program stops its brokers before it
    ends."""
    raise KeyboardInterrupt


def show_report(options: argparse.Namespace) -> None:
    """Print the table of an earlier race (`--report`), or put it into a document (`--into`)."""
    try:
        results = Results.load(options.report)
        if options.into is not None:
            report.put_into(options.into, results)
        elif options.results:
            keep(results)
        else:
            print_report(results, None, as_rst=options.rst)
    except (OSError, ValueError, KeyError) as error:
        raise SystemExit(f"race: --report: {error}") from error


def keep(results: Results) -> None:
    """Put the medians into the file from which `benchmarks.racing.plot` makes the plot."""
    plot.merge_rows(plot.RESULTS / "race.json", report.plot_rows(results), ("key",))


def print_report(results: Results, output: Path | None, *, as_rst: bool) -> None:
    print(report.rst(results) if as_rst else report.table(results))
    if output is not None:
        (output / "race.txt").write_text(report.table(results), encoding="utf-8")
        print(f"race: {output}/race.json, race.txt", file=sys.stderr)


def main() -> None:
    options = parse()
    if options.report is not None:
        show_report(options)
        return
    chosen = chosen_measures(options.only)
    commands = further_contestants(options.contestant)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end_by_signal)
    scale = Scale().quick() if options.quick else Scale()
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix="pybroker-race-", dir=options.folder, ignore_cleanup_errors=True
    ) as temporary:
        folder = Path(temporary)
        check_machine(folder, options.rounds)
        loads.allow_files(scale.connections + 1000)
        zookeeper = ApacheZooKeeper(folder / "zookeeper")
        race = Race(
            ContestantFactory(folder, zookeeper.connect, commands, itertools.count(1)),
            scale,
            chosen,
            options.output,
        )
        try:
            with contextlib.closing(zookeeper):
                zookeeper.start()
                if not options.quick:
                    print("race: filling the page cache", file=sys.stderr)
                    processes.fill_page_cache(folder)
                race.run(options.rounds, options.minutes)
        except KeyboardInterrupt:
            print("race: stopped by a signal; the results so far follow", file=sys.stderr)
            raise SystemExit(130) from None
        except FAILURES as error:
            print(f"race: {error}", file=sys.stderr)
            raise SystemExit(1) from error
        finally:
            if race.results.samples:
                print_report(race.results, options.output, as_rst=options.rst)
                if options.results and not options.quick:
                    keep(race.results)


if __name__ == "__main__":
    main()
