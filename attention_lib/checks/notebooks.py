"""A reader's notebook: its exercises, and the cells that each of them needs to run.

An exercise needs the cells that define the names it uses, the names that these cells use, and so
on. They are found without running anything. What is found is whole cells, in the notebook's order:

- the last cell above that defines a name, and the cells between that may change it;
- for a name inside a function, the last cell above the exercise, since it is looked up then;
- a cell below, if none above defines the name: a helper may stand there.

A change is seen where code outside functions assigns to a part of an object, calls its method, or
calls a function with it for nothing but the effect; not what a function changes behind its back.

A solution is never taken. Names that come about at run time only (`exec`, `%run`, `import *`) are
not seen; every cell above with one of those is taken if a name is found nowhere.
"""

import ast
import builtins
import re
import symtable
import warnings
from copy import copy, deepcopy
from dataclasses import dataclass, field

import nbformat
from IPython.core.inputtransformer2 import TransformerManager

_CHECK = re.compile(r"""\bcheck\(\s*(["'])(\w+)\1""")
_SOLUTION = re.compile(r"#\s*@title\s+Solution\b", re.IGNORECASE)
_TIMED = re.compile(r"\s*%%(time|timeit|capture)\b.*\n")  # what stands below is plain code
# calls that change none of their arguments, by any part of their name
_HARMLESS = {"print", "display", "check", "hint", "examine", "help", "testing", "plt", "plots"}
_GIVEN = {*dir(builtins), "get_ipython", "display", "__name__", "__file__", "__doc__"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


class UnreadableError(ValueError):
    """The file is no notebook that can be read."""


@dataclass
class Cell:
    """A code cell: its number in the notebook from 1, its source, and what that does to names."""

    number: int
    source: str
    exercises: tuple = ()  # names in check("name", …)
    binds: set = field(default_factory=set)
    imports: set = field(default_factory=set)
    changes: set = field(default_factory=set)
    uses: set = field(default_factory=set)  # when the cell runs
    touches: set = field(default_factory=set)  # the same, with names of the cell's own
    functions: dict = field(default_factory=dict)  # name: what it uses when it is called
    opaque: bool = False

    def later(self, name):
        """What a name of the cell, and whatever the cell itself runs, use when they are called."""
        found, calls = set(), {name, "lambda", *self.touches}
        while calls:
            new = self.functions.get(calls.pop(), set()) - found
            found |= new
            calls |= new
        return found


def read(path):
    """The cells of a notebook of any version.

    Raises:
        UnreadableError: It cannot be read, is no JSON, or is no notebook.
    """
    try:
        text = path.read_text("utf-8-sig")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # cells without ids, and the like
            return nbformat.reads(text, as_version=4, capture_validation_error={}).cells
    except Exception as error:  # an edited file can fail anywhere inside nbformat
        first = (str(error).strip() or "empty").splitlines()[0][:100]
        raise UnreadableError(f"not a notebook that can be read: {first}") from None


def code_cells(cells):
    """The `Cell` of every code cell that is no solution."""
    numbered = (
        (n, c.source.encode("utf-8", "backslashreplace").decode())  # no kernel takes half a pair
        for n, c in enumerate(cells, 1)
        if c.cell_type == "code"
    )
    found = [analysed(n, source) for n, source in numbered if not is_solution(source)]
    modules = set().union(*(cell.imports for cell in found))
    for cell in found:
        cell.changes -= modules  # np.testing.assert_allclose(x, y) does not change np
    return found


def is_solution(source):
    """Is this cell one of the chapter's solutions?"""
    return _SOLUTION.match(source.lstrip()) is not None


def analysed(number, source):
    """A cell with the names that it uses, binds and changes; none if it is not valid Python."""
    # magics become calls, as IPython makes them
    code = TransformerManager().transform_cell(_TIMED.sub("", source, count=1))
    cell = Cell(number, source)
    try:
        tree = ast.parse(code)
        _flow(tree.body, set(), cell)
    except (SyntaxError, ValueError):
        cell.exercises = tuple(name for _, name in _CHECK.findall(source))
        return cell
    cell.exercises = tuple(name for name, _ in checks(tree))
    cell.imports = _imported(tree)
    cell.changes = set(_changed(tree))
    cell.opaque = "*" in cell.imports or bool({"exec", "get_ipython"} & cell.uses)
    return cell


def checks(tree):
    """Pairs of name and answer, for each `check("name", answer)` in the code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and len(node.args) + len(node.keywords) == 2:
            first, answer = *node.args, *(keyword.value for keyword in node.keywords)
            called = getattr(node.func, "id", getattr(node.func, "attr", None))
            name = getattr(first, "value", None)
            if called == "check" and isinstance(name, str):
                yield name, answer


def is_untouched(source, exercise):
    """Is the answer to this exercise still the stub, as the source alone shows?"""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return False
    answers = [answer for name, answer in checks(tree) if name == exercise]
    return bool(answers) and all(_is_stub(answer, tree) for answer in answers)


def needed(cells, target, changes=True):
    """The cells to run for one of them, in order, itself last.

    Without `changes` cells that may change an object, and need not, are left out.
    """
    found, seen = set(), set()
    wanted = [
        (name, target.number) for name in target.uses | set().union(*target.functions.values())
    ]
    while wanted:
        name, before = wanted.pop()
        if (name, before) in seen or name in _GIVEN:
            continue
        seen.add((name, before))
        for cell in _sources(cells, name, before, target, changes):
            found.add(cell.number)
            wanted += [(other, cell.number) for other in cell.uses]
            wanted += [(other, target.number) for other in cell.later(name)]
    return [cell for cell in cells if cell.number in found] + [target]


def _sources(cells, name, before, target, changes):
    """The cells that a name comes from, for a cell with the number `before`."""
    others = [cell for cell in cells if cell is not target]
    above = [cell for cell in others if cell.number < before]
    last = max((cell.number for cell in above if name in cell.binds), default=None)
    if last is not None:
        later = [c for c in above if changes and c.number > last and name in c.changes]
        return [c for c in above if c.number == last] + later
    below = [cell for cell in others if name in cell.binds]
    return below[:1] or [cell for cell in above if cell.opaque]


def _flow(statements, bound, cell):
    """Add what statements use that is not in `bound`, the names they are sure to find in the cell.

    Returns what is bound after them.
    """
    for node in statements:
        blocks = [] if isinstance(node, _FUNCTIONS) else _blocks(node)
        uses, binds = _names_of(_head(node) if blocks else node, cell)
        cell.uses |= uses - bound
        cell.touches |= uses
        cell.binds |= binds
        inside = [_flow(block, bound | binds, cell) for block in blocks]
        if not blocks or isinstance(node, ast.With):  # a loop or a branch may not run
            bound = bound.union(binds, *inside)
    return bound


def _blocks(node):
    parts = [node, *getattr(node, "handlers", ())]
    found = (getattr(part, f, None) for part in parts for f in ("body", "orelse", "finalbody"))
    return [block for block in found if isinstance(block, list) and block]


def _head(node):
    """A statement without the blocks in it."""
    head = copy(node)
    for name in ("body", "orelse", "finalbody"):
        if getattr(node, name, None):
            setattr(head, name, [ast.Pass()])
    if getattr(node, "handlers", None):
        head.handlers = [_head(handler) for handler in node.handlers]
    return head


def _names_of(node, cell):
    """The global names that a statement uses at once, and that it binds."""
    uses = {*_names(node.target)} if isinstance(node, ast.AugAssign) else set()
    statement = _AsGenerators().visit(deepcopy(node))
    table = symtable.symtable(ast.unparse(statement), "cell", "exec")
    return _read_symbols(table, cell.functions, uses, set())


class _AsGenerators(ast.NodeTransformer):
    """Comprehensions as generators: from Python 3.12 on they share the scope around them."""

    def visit_ListComp(self, node):
        self.generic_visit(node)
        return ast.GeneratorExp(node.elt, node.generators)

    visit_SetComp = visit_ListComp

    def visit_DictComp(self, node):
        self.generic_visit(node)
        return ast.GeneratorExp(ast.Tuple([node.key, node.value], ast.Load()), node.generators)


def _read_symbols(table, functions, uses, binds, owner=None, late=False):
    """Sort the global names of a scope and of the scopes in it, which belong to `owner`."""
    top = table.get_type() == "module"
    # of functions only a generator runs where it stands
    late = late or (table.get_type() == "function" and table.get_name() != "genexpr")
    used = functions.setdefault(owner, set()) if late else uses
    for symbol in table.get_symbols():
        outside = symbol.is_global() or top
        if outside and (symbol.is_assigned() or symbol.is_imported()):
            binds.add(symbol.get_name())
        if outside and symbol.is_referenced():
            used.add(symbol.get_name())
    for inner in table.get_children():
        _read_symbols(inner, functions, uses, binds, owner or inner.get_name(), late)
    return uses, binds


def _imported(tree):
    nodes = (n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom))
    return {(a.asname or a.name).split(".")[0] for node in nodes for a in node.names}


def _changed(tree):
    """Names of objects that code outside functions may change: x[0] = 1, x.sort(), train(x)."""
    for node in _outside_functions(tree):
        if isinstance(node, ast.Subscript | ast.Attribute) and not isinstance(node.ctx, ast.Load):
            yield from _names(node.value)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield from () if _HARMLESS & set(_path(node.value.func)) else _names(node.value)
        elif isinstance(node, ast.Call) and _path(node.func)[-1:] in (["train"], ["fit"]):
            yield from _names(node)


def _path(function):
    """`np.testing.assert_equal` as a list of names."""
    if isinstance(function, ast.Attribute):
        return [*_path(function.value), function.attr]
    return [function.id] if isinstance(function, ast.Name) else []


def _names(tree):
    return (node.id for node in ast.walk(tree) if isinstance(node, ast.Name))


def _outside_functions(tree):
    for child in ast.iter_child_nodes(tree):
        if not isinstance(child, _FUNCTIONS):
            yield child
            yield from _outside_functions(child)


def _is_stub(answer, tree):
    """Is it `...` or None, or a name that this code gives nothing else, or an empty function?"""
    if not isinstance(answer, ast.Name):
        return isinstance(answer, ast.Constant) and answer.value in (..., None)
    given = [node for node in tree.body if answer.id in _bound(node)]
    return bool(given) and all(_is_empty(node) for node in given)


def _bound(node):
    if isinstance(node, ast.FunctionDef):
        return {node.name}
    names = (n for n in ast.walk(node) if isinstance(n, ast.Name))
    return {n.id for n in names if isinstance(n.ctx, ast.Store)}


def _is_empty(node):
    if isinstance(node, ast.Assign):
        return isinstance(node.value, ast.Constant) and node.value.value in (..., None)
    body = node.body if isinstance(node, ast.FunctionDef) else [node]
    plain = (n for n in body if not isinstance(n, ast.Pass))
    return all(isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant) for n in plain)
