"""The commands of `python -m convbwd`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from time import perf_counter

import numpy as np

import convbwd
from convbwd import _accuracy, demo
from convbwd._bench import command

_FACES = ("ascendc", "cann", "infiniop")  # folders of headers


def info() -> None:
    """Print the build, the instruction set in use and the number of threads."""
    facts = {**convbwd.build_info(), "threads": convbwd.get_num_threads(), "numpy": np.__version__}
    try:
        from rich.console import Console
        from rich.table import Table
    except ModuleNotFoundError:
        for name, value in facts.items():
            print(f"{name:20} {value}")
    else:
        table = Table(title="convbwd", show_header=False)
        for name, value in facts.items():
            table.add_row(name, str(value))
        Console().print(table)


def print_place(option: str) -> None:
    """Print where the C and C++ files of the package are: what the option of this name asks for."""
    root = Path(convbwd.__file__).parent
    includes = [root / "include", *(root / "include" / face for face in _FACES)]
    places = {
        "cmakedir": [root / "lib" / "cmake" / "convbwd"],
        "libdir": [root / "lib"],
        "includes": includes,
        "ascend-home": [root / "lib" / "convbwd" / "ascend"],
        "infini-root": [root / "lib" / "convbwd" / "infini"],
    }[option]
    for place in places:
        if not place.is_dir():
            sys.exit(f"{place} does not exist: this convbwd was not installed by pip")
    print(*(f"-I{place}" if option == "includes" else place for place in places))


def digits(epochs: int) -> None:
    """Check the gradients of each layer, train, and compare the time with im2col."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn
    from rich.table import Table

    console = Console()
    data = demo.load_digits()
    network = demo.digits_network()
    console.print(f"{len(data.labels)} handwritten digits to train on, {len(data.held_out_labels)} held out")

    table = Table(title="Error of the gradients against central finite differences in float64", box=SIMPLE)
    for column in ("layer", "weight", "dx dw db in float64", "dx dw db in float32"):
        table.add_column(column, no_wrap=True)
    network.forward(data.images[:1])
    agree = True
    with console.status("checking every gradient of every layer"):
        for name, conv in zip(demo.LAYER_NAMES, network.convs, strict=True):
            row = [name, "x".join(map(str, conv.weight.shape))]
            for errors, tolerance in zip(demo.check_gradients(conv).values(), (1e-11, 1e-5), strict=True):
                agree &= max(errors.values()) < tolerance
                row.append(" ".join(f"{error:.0e}" for error in errors.values()))
            table.add_row(*row)
    console.print(table)
    if not agree:
        sys.exit("the gradients do not agree with finite differences")

    network.conv_seconds = 0
    start = perf_counter()
    with Progress(
        "training", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), "{task.description}", console=console
    ) as progress:
        task = progress.add_task("", total=epochs)
        for loss in demo.train(network, data, epochs):
            progress.update(task, advance=1, description=f"loss {loss:.4f}")
    seconds = perf_counter() - start
    share = network.conv_seconds / seconds
    reached = demo.accuracy(network, data.held_out_images, data.held_out_labels)
    console.print(f"accuracy on the held-out digits: {reached:.2%}")
    console.print(f"time in convolutions: {share:.0%} of {seconds:.1f} s")

    times: dict[type[demo.Conv], list[float]] = {demo.Conv: [], demo.Im2colConv: []}
    with console.status("timing an epoch both ways"):
        for _ in range(3):
            for conv_type, taken in times.items():
                start = perf_counter()
                list(demo.train(demo.digits_network(conv_type), data, epochs=1))
                taken.append(perf_counter() - start)
    ours, im2col = (min(taken) for taken in times.values())
    console.print(f"one epoch: {ours:.3f} s with convbwd, {im2col:.3f} s with NumPy im2col ({im2col / ours:.1f} times)")


def run_digits(options: argparse.Namespace) -> None:
    """Run the demo, which needs an extra."""
    try:
        digits(options.epochs or 20)
    except ModuleNotFoundError as error:
        text = f"{error}: the demo needs scikit-learn and rich, pip install 'convbwd[demo]'"
        raise ModuleNotFoundError(text) from error


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(prog="python -m convbwd", description="Gradients of convolutions for NumPy.")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--version", action="version", version=convbwd.__version__)
    for option, text in (
        ("cmakedir", "print the directory for CMAKE_PREFIX_PATH"),
        ("libdir", "print the directory of the libraries"),
        ("includes", "print the compiler's options for the headers"),
        ("ascend-home", "print the directory that programs take for ASCEND_HOME_PATH"),
        ("infini-root", "print the directory that programs take for INFINI_ROOT"),
    ):
        only.add_argument(f"--{option}", action="store_const", dest="place", const=option, help=text)
    commands = parser.add_subparsers(
        title="commands", metavar="command", description="command --help shows their options."
    )

    def add(name: str, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(parser=added)
        return added

    demo_parser = add("digits", "Train a network on handwritten digits (the default).")
    for one, default in ((parser, None), (demo_parser, argparse.SUPPRESS)):  # the second keeps what the first was given
        text = "epochs of training (default: 20)"
        one.add_argument("--epochs", type=command.positive, metavar="N", default=default, help=text)
        one.set_defaults(run=run_digits, parser=one)
    text = "Print the version, the compiler, the instruction set in use and the number of threads."
    add("info", text).set_defaults(run=lambda options: info())
    command.add_explain(add("explain", "Say how problems are computed, and how near that is to the machine's limits."))
    command.add_bench(add("bench", "Time convbwd against other libraries, in turns."))
    accuracy = add("accuracy", "Measure the errors of every algorithm, dtype and length of sums.")
    accuracy.add_argument("--plot", type=command.picture, help="draw them here (needs matplotlib)")
    accuracy.set_defaults(run=lambda options: _accuracy.main(options.plot))
    return parser


def main(arguments: list[str] | None = None) -> None:
    """Run the command that the arguments ask for."""
    options = make_parser().parse_args(arguments)
    if options.place:
        return print_place(options.place)
    if options.epochs and options.run is not run_digits:
        options.parser.error("--epochs is an option of digits")
    with command.refusals(options.parser):
        options.run(options)


if __name__ == "__main__":
    main()
