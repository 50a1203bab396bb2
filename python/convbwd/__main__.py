"""Train a small network on handwritten digits, or run another command.

info prints facts about this build, accuracy the errors of gradients. bench times it against other libraries, explain
says how a problem is computed and how near that comes to the limits of the machine; these two have options of their own
(`bench --help`).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from time import perf_counter

import numpy as np

import convbwd
from convbwd import _accuracy, demo

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


def main(arguments: list[str] | None = None) -> None:
    """Run the command that the arguments ask for."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] in ("bench", "explain"):
        from convbwd._bench import command

        run = command.bench_main if arguments[0] == "bench" else command.explain_main
        return run(arguments[1:])
    parser = argparse.ArgumentParser(prog="python -m convbwd", description=__doc__)
    commands = ("digits", "info", "accuracy", "bench", "explain")
    parser.add_argument("command", nargs="?", choices=commands, default="digits")
    parser.add_argument("--epochs", type=int, default=20, help="epochs of training (default: %(default)s)")
    parser.add_argument("--plot", metavar="PNG", help="where accuracy draws its plot (needs matplotlib)")
    places = parser.add_mutually_exclusive_group()
    for option, text in (
        ("cmakedir", "print the directory for CMAKE_PREFIX_PATH"),
        ("libdir", "print the directory of the libraries"),
        ("includes", "print the compiler's options for the headers"),
        ("ascend-home", "print the directory that programs take for ASCEND_HOME_PATH"),
        ("infini-root", "print the directory that programs take for INFINI_ROOT"),
    ):
        places.add_argument(f"--{option}", action="store_const", dest="place", const=option, help=text)
    options = parser.parse_args(arguments)
    if options.place:
        return print_place(options.place)
    if options.epochs < 1:
        parser.error(f"--epochs must be at least 1, got {options.epochs}")
    if options.command == "info":
        return info()
    if options.command == "accuracy":
        return _accuracy.main(options.plot)
    try:
        digits(options.epochs)
    except ModuleNotFoundError as error:
        sys.exit(f"{error}: the demo needs scikit-learn and rich, pip install 'convbwd[demo]'")


if __name__ == "__main__":
    main()
