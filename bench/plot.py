# SPDX-License-Identifier: Apache-2.0
"""Memory against time as an SVG, and a PNG of it, without any package.

Each point is an allocator: its time per event on a logarithmic axis, the memory that it
holds over what is live on the other. Every point carries its name; a line joins those
that no other beats in both (the Pareto front).

    svg = scatter([Point("bfc", 25.0, 1.1, "hbmalloc")], "title", "time", "memory")
    to_png(svg_path, png_path)
"""

import ctypes
import ctypes.util
import math
import shutil
import subprocess
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 1000, 640
LEFT, RIGHT, TOP, BOTTOM = 86, 30, 74, 70
FONT = 13
COLORS = {"hbmalloc": "#0b62a4", "peer": "#b5482a"}
MARKS = {"hbmalloc": "circle", "peer": "square"}


@dataclass
class Point:
    name: str
    time: float  # nanoseconds per event
    memory: float  # over live bytes
    family: str  # hbmalloc or peer


def pareto_front(points):
    """Those with no other point at most as slow and at most as large, fastest first. A hundredth
    less of what is above 1 is no less: a search for the smallest device may end that far off."""
    front = []
    for point in sorted(points, key=lambda p: (p.time, p.memory)):
        if not front or point.memory - 1 < 0.99 * (front[-1].memory - 1):
            front.append(point)
    return front


class Axes:
    """From figures to pixels. The memory axis is logarithmic in the part above 1, so that
    1.001 and 1.01 stay apart while 4 still fits."""

    FLOOR = 0.002  # of the part above 1: what lies below is drawn there

    def __init__(self, points):
        times = [p.time for p in points]
        self.t0 = 10 ** math.floor(math.log10(min(times) * 0.9))
        self.t1 = 10 ** math.ceil(math.log10(max(times) * 1.1))
        above = [max(p.memory - 1, self.FLOOR) for p in points]
        self.m0 = self.FLOOR
        self.m1 = max(above) * 1.6
        if self.m0 < min(above) / 12:
            self.m0 = min(above) / 3

    def x(self, time):
        share = math.log(time / self.t0) / math.log(self.t1 / self.t0)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, memory):
        above = max(memory - 1, self.m0)
        share = math.log(above / self.m0) / math.log(self.m1 / self.m0)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def time_ticks(self):
        decade = self.t0
        while decade <= self.t1 * 1.001:
            for step in (1, 2, 5):
                if self.t0 * 0.999 <= decade * step <= self.t1 * 1.001:
                    yield decade * step, step == 1
            decade *= 10

    def memory_ticks(self):
        for above in (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100):
            if self.m0 * 0.999 <= above <= self.m1:
                yield 1 + above


def time_text(nanoseconds):
    for unit, size in (("ms", 1e6), ("µs", 1e3)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:g} {unit}"
    return f"{nanoseconds:g} ns"


def place_labels(points, axes):
    """A text position for each point such that texts cover neither each other nor points."""
    taken = [(axes.x(p.time) - 7, axes.y(p.memory) - 7, axes.x(p.time) + 7, axes.y(p.memory) + 7) for p in points]
    places = []
    for point in points:
        x, y = axes.x(point.time), axes.y(point.memory)
        width = len(point.name) * FONT * 0.66
        best = None
        for distance in (10, 18, 28, 40, 54, 70, 90, 112):
            for dx, dy in ((1, 0), (0.8, -0.9), (0.8, 0.9), (0, -1), (0, 1), (-0.8, -0.9), (-0.8, 0.9), (-1, 0)):
                left = x + dx * distance - (0 if dx > 0 else width if dx < 0 else width / 2)
                middle = y + dy * distance
                box = (left - 2, middle - FONT * 0.62, left + width + 2, middle + FONT * 0.62)
                inside = box[0] > LEFT and box[2] < WIDTH - 4 and box[1] > TOP and box[3] < HEIGHT - BOTTOM
                clear = all(box[2] < t[0] or box[0] > t[2] or box[3] < t[1] or box[1] > t[3] for t in taken)
                if inside and clear:
                    best = (left, middle, box)
                    break
            if best:
                break
        if best is None:
            best = (x + 10, y, (x, y, x, y))
        taken.append(best[2])
        places.append(best)
    return places


def frame(axes, time_title, memory_title):
    out = []
    for time, strong in axes.time_ticks():
        x = axes.x(time)
        out.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}" '
                   f'stroke="{"#c4c8cc" if strong else "#eceef0"}"/>')
        if strong or axes.t1 / axes.t0 <= 1000:
            out.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{time_text(time)}</text>')
    for memory in axes.memory_ticks():
        y = axes.y(memory)
        out.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#e2e5e8"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{memory:g}</text>')
    out.append(f'<rect x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" height="{HEIGHT - TOP - BOTTOM}" '
               'fill="none" stroke="#5c6670"/>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 20}" text-anchor="middle">{escape(time_title)}</text>')
    out.append(f'<text x="20" y="{(TOP + HEIGHT - BOTTOM) / 2}" text-anchor="middle" '
               f'transform="rotate(-90 20 {(TOP + HEIGHT - BOTTOM) / 2})">{escape(memory_title)}</text>')
    return out


def mark(point, axes):
    x, y, color = axes.x(point.time), axes.y(point.memory), COLORS[point.family]
    if MARKS[point.family] == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5.5" fill="{color}"/>'
    return f'<rect x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10" fill="{color}"/>'


def legend():
    x = WIDTH - RIGHT - 330
    return [f'<circle cx="{x}" cy="56" r="5.5" fill="{COLORS["hbmalloc"]}"/><text x="{x + 10}" y="60">hbmalloc</text>',
            f'<rect x="{x + 95}" y="51" width="10" height="10" fill="{COLORS["peer"]}"/>'
            f'<text x="{x + 110}" y="60">peer</text>',
            f'<line x1="{x + 165}" y1="56" x2="{x + 195}" y2="56" stroke="#3c8c4a" stroke-width="2.5" '
            f'stroke-dasharray="7 4"/><text x="{x + 202}" y="60">Pareto front</text>']


def scatter(points, title, time_title, memory_title):
    """The SVG's text."""
    axes = Axes(points)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
           f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="DejaVu Sans, Helvetica, Arial, sans-serif" '
           f'font-size="{FONT}" fill="#20262c">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
           f'<text x="{LEFT}" y="32" font-size="17" font-weight="bold">{escape(title)}</text>']
    out += legend() + frame(axes, time_title, memory_title)
    front = pareto_front(points)
    path = " ".join(f"{axes.x(p.time):.1f},{axes.y(p.memory):.1f}" for p in front)
    out.append(f'<polyline points="{path}" fill="none" stroke="#3c8c4a" stroke-width="2.5" stroke-dasharray="7 4"/>')
    for point, (left, middle, _) in zip(points, place_labels(points, axes)):
        width = len(point.name) * FONT * 0.66
        end = min(max(axes.x(point.time), left), left + width)
        if math.hypot(end - axes.x(point.time), middle - axes.y(point.memory)) > 14:
            out.append(f'<line x1="{axes.x(point.time):.1f}" y1="{axes.y(point.memory):.1f}" x2="{end:.1f}" '
                       f'y2="{middle:.1f}" stroke="#9aa3ab"/>')
        out.append(mark(point, axes))
        weight = ' font-weight="bold"' if point in front else ""
        out.append(f'<text x="{left:.1f}" y="{middle + FONT * 0.35:.1f}" fill="{COLORS[point.family]}"{weight} '
                   f'paint-order="stroke" stroke="white" stroke-width="4" stroke-linejoin="round">'
                   f'{escape(point.name)}</text>')
    return "\n".join(out + ["</svg>"]) + "\n"


def _png_by_program(svg_path, png_path):
    for command in (["rsvg-convert", "--zoom=2", "-o", png_path, svg_path],
                    ["inkscape", "--export-dpi=192", f"--export-filename={png_path}", svg_path],
                    ["magick", "-density", "192", svg_path, png_path]):
        if shutil.which(command[0]):
            if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                return command[0]
    return None


def _png_by_package(svg_path, png_path):
    try:
        import cairosvg  # pylint: disable=import-outside-toplevel
    except ImportError:
        return None
    cairosvg.svg2png(url=svg_path, write_to=png_path, scale=2)
    return "cairosvg"


def _png_by_library(svg_path, png_path):
    """librsvg and cairo, which many systems have without the rsvg-convert program."""
    try:
        rsvg, cairo, gobject = (ctypes.CDLL(name) for name in ("librsvg-2.so.2", "libcairo.so.2", "libgobject-2.0.so.0"))
    except OSError:
        return None
    pointer = ctypes.c_void_p
    rsvg.rsvg_handle_new_from_data.restype = pointer
    rsvg.rsvg_handle_new_from_data.argtypes = [ctypes.c_char_p, ctypes.c_size_t, pointer]
    rsvg.rsvg_handle_render_cairo.argtypes = [pointer, pointer]
    cairo.cairo_image_surface_create.restype = pointer
    cairo.cairo_create.restype = pointer
    cairo.cairo_create.argtypes = [pointer]
    cairo.cairo_scale.argtypes = [pointer, ctypes.c_double, ctypes.c_double]
    cairo.cairo_surface_write_to_png.argtypes = [pointer, ctypes.c_char_p]
    for name in ("cairo_destroy", "cairo_surface_destroy"):
        getattr(cairo, name).argtypes = [pointer]
    gobject.g_object_unref.argtypes = [pointer]
    with open(svg_path, "rb") as file:
        data = file.read()
    handle = rsvg.rsvg_handle_new_from_data(data, len(data), None)
    if not handle:
        return None
    surface = cairo.cairo_image_surface_create(0, 2 * WIDTH, 2 * HEIGHT)
    context = cairo.cairo_create(surface)
    cairo.cairo_scale(context, 2.0, 2.0)
    drawn = rsvg.rsvg_handle_render_cairo(handle, context)
    written = cairo.cairo_surface_write_to_png(surface, png_path.encode()) == 0
    cairo.cairo_destroy(context)
    cairo.cairo_surface_destroy(surface)
    gobject.g_object_unref(handle)
    return "librsvg" if drawn and written else None


def to_png(svg_path, png_path):
    """By whatever this machine has; returns its name, or None where there is nothing."""
    for way in (_png_by_program, _png_by_package, _png_by_library):
        name = way(svg_path, png_path)
        if name:
            return name
    return None
