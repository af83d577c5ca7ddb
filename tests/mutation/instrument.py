# SPDX-License-Identifier: Apache-2.0
"""Rewrites a C++ file so that it holds all its mutants, of which one is chosen at run time.

Each place that can be mutated becomes a choice between what is written and a change of it:

    if (size < limit) ++count;
    if ((::hbm_mutant::On(7) ? (size) <= (limit) : (size) < (limit)))
      (::hbm_mutant::On(8) ? --count : ++count);

so that one build serves every mutant: HBMALLOC_MUTANT=7 in the environment turns number 7
on. Lines stay where they are. Parsing is libclang's.
"""
import dataclasses
import re

from clang import cindex

# The header that mutated files include. A function that is evaluated by the compiler sees
# no mutant; one that runs before its file's variables are set sees none either.
HEADER = """#ifndef HBM_MUTANT_H_
#define HBM_MUTANT_H_
#include <cstdlib>
namespace hbm_mutant {
inline int active = [] {
  const char* const text = std::getenv("HBMALLOC_MUTANT");
  return text == nullptr ? 0 : std::atoi(text);
}();
constexpr bool On(int number) {
  return !__builtin_is_constant_evaluated() && __builtin_expect(active == number, 0);
}
}  // namespace hbm_mutant
#endif
"""

BINARY = {"+": "-", "-": "+", "*": "/", "/": "*", "%": "*", "<<": ">>", ">>": "<<", "&": "|",
          "|": "&", "^": "&", "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==",
          "&&": "||", "||": "&&", "+=": "-=", "-=": "+=", "|=": "&=", "&=": "|=", "^=": "|=",
          "<<=": ">>=", ">>=": "<<="}
UNARY = {"++": "--", "--": "++", "!": ""}


@dataclasses.dataclass
class Site:
    """A place in the file: [start, end) and the parts of which it is put together."""
    start: int
    end: int
    line: int
    written: list  # of strings and (start, end) of operands
    changed: list
    number: int = 0

    def describe(self, text):
        def part(piece):
            return piece if isinstance(piece, str) else text[piece[0]:piece[1]]
        return " -> ".join(re.sub(r"\s+", " ", "".join(map(part, pieces)))
                           for pieces in (self.written, self.changed))


def spelling_offset(location):
    """Where the text stands, also that of a macro's argument."""
    file, line, column, offset = (cindex.c_object_p(), cindex.c_uint(), cindex.c_uint(),
                                  cindex.c_uint())
    cindex.conf.lib.clang_getSpellingLocation(location, cindex.byref(file), cindex.byref(line),
                                              cindex.byref(column), cindex.byref(offset))
    return (cindex.File(file).name if file else None), offset.value


class Finder:
    """Walks the functions of one file and collects their sites."""

    def __init__(self, path, text):
        self.path, self.text, self.sites = str(path), text, []

    def span(self, cursor):
        """The cursor's [start, end) in this file; None if it is not all written here."""
        first, start = spelling_offset(cursor.extent.start)
        last, end = spelling_offset(cursor.extent.end)
        if first != self.path or last != self.path or end <= start:
            return None
        line_start = self.text.rfind("\n", 0, start) + 1
        if self.text[line_start:start].lstrip().startswith("#"):
            return None  # inside a macro's definition
        return start, end

    def add(self, span, written, changed):
        text = self.text[span[0]:span[1]]
        if "//" in text or "#" in text or "[&" in text or "[this" in text:
            return  # could not be repeated on one line, or holds a lambda
        line = self.text.count("\n", 0, span[0]) + 1
        self.sites.append(Site(span[0], span[1], line, written, changed))

    def binary(self, cursor, span):
        operands = list(cursor.get_children())
        if len(operands) != 2:
            return
        left, right = map(self.span, operands)
        if left is None or right is None or left[0] != span[0] or right[1] != span[1]:
            return
        operator = self.text[left[1]:right[0]].strip()
        if operator in BINARY:
            self.add(span, ["(", left, f") {operator} (", right, ")"] if operator[-1] != "=" or
                     operator in ("<=", ">=", "==", "!=") else [left, f" {operator} (", right, ")"],
                     ["(", left, f") {BINARY[operator]} (", right, ")"])

    def unary(self, cursor, span):
        operand = self.span(next(cursor.get_children(), cursor))
        if operand is None:
            return
        before, after = self.text[span[0]:operand[0]].strip(), self.text[operand[1]:span[1]].strip()
        if before in UNARY and not after:
            changed = [f"{UNARY[before]}(", operand, ")"] if before != "!" else [
                "static_cast<bool>(", operand, ")"]
            self.add(span, [f"{before}(", operand, ")"], changed)
        elif after in UNARY and not before:
            self.add(span, ["(", operand, f"){after}"], ["(", operand, f"){UNARY[after]}"])

    def literal(self, span):
        text = self.text[span[0]:span[1]]
        if text in ("true", "false"):
            self.add(span, [text], ["false" if text == "true" else "true"])
        elif re.fullmatch(r"(0[xX][0-9a-fA-F']+|[0-9']+)([uU]?[lL]{0,2}|[uUlL]+)", text):
            # 0 as a pointer, a template's argument or an array's length does not compile so
            # and falls out.
            self.add(span, [text], [f"{text} + 1"])

    def walk(self, cursor, in_body=False):
        kinds = cindex.CursorKind
        kind = cursor.kind
        if kind in (kinds.STATIC_ASSERT, kinds.ENUM_CONSTANT_DECL):
            return
        if kind in (kinds.VAR_DECL, kinds.FIELD_DECL):
            tokens = [token.spelling for token in cursor.get_tokens()]
            if "constexpr" in tokens[:4]:
                return
            in_body = True  # initialisers
        children = list(cursor.get_children())
        if kind == kinds.CASE_STMT:
            children = children[1:]
        if kind == kinds.COMPOUND_STMT:
            in_body = True
        if in_body:
            span = self.span(cursor)
            if span is not None:
                if kind in (kinds.BINARY_OPERATOR, kinds.COMPOUND_ASSIGNMENT_OPERATOR):
                    self.binary(cursor, span)
                elif kind == kinds.UNARY_OPERATOR:
                    self.unary(cursor, span)
                elif kind in (kinds.INTEGER_LITERAL, kinds.CXX_BOOL_LITERAL_EXPR):
                    self.literal(span)
        for child in children:
            file = child.location.file
            if cursor.kind == kinds.TRANSLATION_UNIT and (file is None or file.name != self.path):
                continue
            self.walk(child, in_body)


def find(path, text, arguments):
    """Every site of the file, in the order of the text."""
    unit = cindex.Index.create().parse(str(path), args=["-x", "c++", *arguments])
    fatal = [str(d) for d in unit.diagnostics if d.severity >= cindex.Diagnostic.Error]
    if fatal:
        raise RuntimeError(f"{path} is not understood: {fatal[0]}")
    finder = Finder(path, text)
    finder.walk(unit.cursor)
    unique = {(site.start, site.end): site for site in finder.sites}
    return sorted(unique.values(), key=lambda site: (site.start, -site.end))


def render(text, sites):
    """The file with all these sites as choices."""
    def operand(piece, site):
        if isinstance(piece, str):
            return piece
        return render_range(piece, [other for other in sites if other is not site and
                                    piece[0] <= other.start and other.end <= piece[1]])

    def render_range(piece, within):
        out, position = [], piece[0]
        for site in within:
            if site.start < position:
                continue
            out += [text[position:site.start], choice(site)]
            position = site.end
        return "".join(out + [text[position:piece[1]]])

    def choice(site):
        changed = "".join(operand(piece, site) for piece in site.changed)
        written = "".join(operand(piece, site) for piece in site.written)
        lines = text.count("\n", site.start, site.end)
        whole = (f"(::hbm_mutant::On({site.number}) ? ({changed}) : ({written}))"
                 ).replace("\n", " ")
        return whole + "\n" * lines

    return render_range((0, len(text)), sites)
