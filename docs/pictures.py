"""What the pages draw and list from the package itself while they are built, and how they show mathematics."""

import ast
import pkgutil
from html import escape
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

import convbwd

logger = logging.getLogger(__name__)

COLOURS = (
    "#4c78a8",
    "#f58518",
    "#54a24b",
    "#b279a2",
    "#e45756",
    "#72b7b2",
    "#eeca3b",
    "#9d755d",
    "#bab0ac",
)
CHANNELS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
SIZES = (112, 56, 28, 14, 7)


def svg(width: float, height: float, body: list[str]) -> str:
    """Return a picture whose text has the colour of the page."""
    style = "max-width:100%;font-family:inherit;font-size:12px"
    return f"<svg viewBox='0 0 {width} {height}' width='{width}' style='{style}' role='img'>{''.join(body)}</svg>"


def text(x: float, y: float, words: object, anchor: str = "start") -> str:
    """Return words of a picture."""
    return f"<text x='{x}' y='{y}' text-anchor='{anchor}' fill='currentColor'>{escape(str(words))}</text>"


def box(
    x: float, y: float, width: float, height: float, colour: str, title: str
) -> str:
    """Return a coloured box of a picture, which says its title under the mouse."""
    size = f"width='{width:.1f}' height='{height:.1f}'"
    return f"<rect x='{x:.1f}' y='{y:.1f}' {size} fill='{colour}'><title>{escape(title)}</title></rect>"


def algorithm(plan: convbwd.Plan, result: str) -> str:
    """Return the name of the algorithm that a plan has for a result."""
    line = next(
        line for line in plan.explain().splitlines() if line.startswith(f"{result}: ")
    )
    return line.removeprefix(f"{result}: ").split()[0].rstrip(":")


def algorithms() -> str:
    """Draw which algorithm is taken, over channels and the size of the image, for dense and depthwise 3x3 windows."""
    colours: dict[str, str] = {}
    body = []
    wide, high, left, top = 26, 20, 40, 40
    panel = left + wide * len(CHANNELS) + 16
    for index, (result, depthwise) in enumerate(
        (r, g) for g in (False, True) for r in ("grad_input", "grad_weight")
    ):
        x0, y0 = left + index % 2 * panel, top + index // 2 * (high * len(SIZES) + 70)
        body.append(
            text(x0, y0 - 12, f"{result}, {'depthwise' if depthwise else 'dense'} 3x3")
        )
        for row, size in enumerate(SIZES):
            body.append(text(x0 - 6, y0 + row * high + 14, size, "end"))
            for column, c in enumerate(CHANNELS):
                image, weight = (1, c, size, size), (c, 1 if depthwise else c, 3, 3)
                plan = convbwd.plan(
                    image, image, weight, padding=1, groups=c if depthwise else 1
                )
                name = algorithm(plan, result)
                colour = colours.setdefault(name, COLOURS[len(colours)])
                title = f"{c} channels, {size}x{size}: {name}"
                body.append(
                    box(
                        x0 + column * wide,
                        y0 + row * high,
                        wide - 1,
                        high - 1,
                        colour,
                        title,
                    )
                )
        for column, c in enumerate(CHANNELS):
            body.append(
                text(
                    x0 + column * wide + wide / 2,
                    y0 + high * len(SIZES) + 14,
                    c,
                    "middle",
                )
            )
    bottom = top + 2 * high * len(SIZES) + 70 + 36
    for i, (name, colour) in enumerate(colours.items()):
        body += [
            box(left + i * 120, bottom, 12, 12, colour, name),
            text(left + i * 120 + 18, bottom + 11, name),
        ]
    return svg(2 * panel + 8, bottom + 20, body)


def workspace() -> str:
    """Draw the workspace of some plans as a share of what im2col would take."""
    shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
        "3x3, 64 channels, 56x56": ((8, 64, 56, 56), (64, 64, 3, 3), {"padding": 1}),
        "7x7, stride 2, 3 channels, 224x224": (
            (8, 3, 224, 224),
            (64, 3, 7, 7),
            {"padding": 3, "stride": 2},
        ),
        "depthwise 7x7, 96 channels, 56x56": (
            (8, 96, 56, 56),
            (96, 1, 7, 7),
            {"padding": 3, "groups": 96},
        ),
        "pointwise, 256 channels, 14x14": ((8, 256, 14, 14), (256, 256, 1, 1), {}),
        "3x3x3, 16 channels, 32x64x64": (
            (1, 16, 32, 64, 64),
            (32, 16, 3, 3, 3),
            {"padding": 1},
        ),
    }
    body, full, left = [], 300.0, 240
    for i, (name, (image, weight, options)) in enumerate(shapes.items()):
        stride, padding = options.get("stride", 1), options.get("padding", 0)
        sizes = [
            (n + 2 * padding - k) // stride + 1
            for n, k in zip(image[2:], weight[2:], strict=True)
        ]
        plan = convbwd.plan((image[0], weight[0], *sizes), image, weight, **options)
        columns = 4 * image[0] * image[1]
        for n, k in zip(sizes, weight[2:], strict=True):
            columns *= n * k
        share = plan.workspace_size / columns
        words = f"{plan.workspace_size / 1e6:.2f} of {columns / 1e6:.0f} MB"
        y = 8 + i * 26
        body += [
            text(left - 8, y + 13, name, "end"),
            box(left, y, full, 18, "#8883", "im2col"),
        ]
        body += [
            box(left, y, full * share, 18, COLOURS[0], words),
            text(left + full + 8, y + 13, words),
        ]
    return svg(left + full + 130, 8 + 26 * len(shapes), body)


class PictureDirective(Directive):
    """A picture, by the name of the function that draws it."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Draw it."""
        picture = {"algorithms": algorithms, "workspace": workspace}[
            self.arguments[0]
        ]()
        return [nodes.raw("", f"<figure>{picture}</figure>", format="html")]


class PlanDirective(Directive):
    """Code that ends with a plan; below it the plan, as a notebook shows it."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Show the code, run it, and show what its last expression is."""
        code = "\n".join(self.content)
        *statements, last = ast.parse(code).body
        assert isinstance(last, ast.Expr)
        names: dict[str, Any] = {}
        exec(compile(ast.Module(statements, []), "plan", "exec"), names)
        plan = eval(compile(ast.Expression(last.value), "plan", "eval"), names)
        block = nodes.literal_block(code, code, language="python")
        return [
            block,
            nodes.raw(
                "",
                f"<div class='table-wrapper'>{plan._repr_html_()}</div>",
                format="html",
            ),
        ]


def public_modules() -> list[str]:
    """Return the public modules of the package but the package itself and the demo, which is a program."""
    names = (m.name for m in pkgutil.iter_modules(convbwd.__path__))
    return sorted(name for name in names if name[0] != "_" and name != "demo")


class ModulesDirective(SphinxDirective):
    """The documentation of every public module of the package but the package itself."""

    def run(self) -> list[nodes.Node]:
        """List the modules, a section each."""
        sections = [
            f"## convbwd.{name}\n\n```{{eval-rst}}\n.. automodule:: convbwd.{name}\n```\n"
            for name in public_modules()
        ]
        return self.parse_text_to_nodes(
            "\n".join(sections), allow_section_headings=True
        )


def check_reference(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn of public functions and classes that the reference lacks, and of modules that show nothing."""
    found = {
        name
        for name, entry in env.domains.python_domain.objects.items()
        if entry.objtype != "module"
    }
    for name in convbwd.__all__:
        if callable(getattr(convbwd, name)) and f"convbwd.{name}" not in found:
            logger.warning("convbwd.%s is not in the reference", name)
    for name in public_modules():
        if not any(one.startswith(f"convbwd.{name}.") for one in found):
            logger.warning("nothing of convbwd.%s is in the reference", name)


def mathml(self: Any, node: nodes.math | nodes.math_block) -> None:
    """Write mathematics as browsers read it, without a script from the network."""
    self.body.append(
        tex2mathml(node.astext(), as_block=isinstance(node, nodes.math_block))
    )
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directives."""
    app.add_html_math_renderer("mathml", (mathml, None), (mathml, None))
    app.connect("env-check-consistency", check_reference)
    app.add_directive("picture", PictureDirective)
    app.add_directive("plan", PlanDirective)
    app.add_directive("modules", ModulesDirective)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
